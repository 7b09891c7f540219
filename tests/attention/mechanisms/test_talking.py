"""Talking heads, against their formula written head by head."""

import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import TalkingHeadsAttention

H, N, M, D = 3, 5, 7, 11


def test_it_starts_as_softmax_attention():
    q, k, v = qkv(N, M, D)
    mask = torch.rand(N, M) > 0.3
    for inputs in ({}, {"mask": mask}, {"causal": True}):
        expected, weights = scaled_dot_product_attention(q, k, v, **inputs)
        assert_close(TalkingHeadsAttention(H).double()(q, k, v, **inputs), expected, **EXACT)
        assert_close(TalkingHeadsAttention(H).double().weights(q, k, **inputs), weights, **EXACT)


def test_each_head_mixes_the_logits_and_the_weights_of_all():
    q, k, v = qkv(N, M, D)
    attention = TalkingHeadsAttention(H).double()
    for mixture in (attention.mix_logits, attention.mix_weights):
        torch.nn.init.normal_(mixture)
    logits = [q[:, h] @ k[:, h].mT * D**-0.5 for h in range(H)]
    weights = [sum(attention.mix_logits[h, g] * logits[g] for g in range(H)).softmax(-1) for h in range(H)]
    mixed = [sum(attention.mix_weights[h, g] * weights[g] for g in range(H)) for h in range(H)]
    assert_close(attention.weights(q, k), torch.stack(mixed, 1), **EXACT)
    assert_close(attention(q, k, v), torch.stack([mixed[h] @ v[:, h] for h in range(H)], 1), **EXACT)


def test_masks_apply_to_every_head():
    q, k, v = qkv(N, M, D)
    attention = TalkingHeadsAttention(H).double()
    torch.nn.init.normal_(attention.mix_logits)
    mask = torch.rand(N, M) > 0.3
    mask[2] = False
    assert (attention.weights(q, k, mask=mask)[:, :, ~mask] == 0).all()
    assert (attention(q, k, v, mask=mask)[:, :, 2] == 0).all()
