"""Pooling by attention, against timm's."""

import pytest
import torch
from timm.layers import AttentionPoolLatent
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from vit.model.attention_pool import AttentionPool
from vit.model.mlp import ACTIVATIONS


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_pooling_by_attention_is_that_of_timm_with_the_same_weights(activation):
    theirs = AttentionPoolLatent(
        15, num_heads=3, mlp_ratio=2.0, norm_layer=nn.LayerNorm, act_layer=ACTIVATIONS[activation]
    )
    ours = AttentionPool(15, 3, 2.0, activation, 1e-5).double()
    ours.load_state_dict(randomised(theirs).state_dict(), strict=True)
    tokens = torch.randn(2, 7, 15, dtype=torch.float64)
    assert_close(ours(tokens), theirs(tokens), **EXACT)


def test_pooling_by_attention_is_refused_for_heads_that_do_not_divide_the_channels():
    own = {"embed_dim": 20, "num_heads": 3, "key_dim": 12, "value_dim": 12}  # which the blocks take
    with pytest.raises(ValueError, match=r"embed_dim \(20\) must be divisible by num_heads \(3\) for pool 'map': take"):
        vit.VisionTransformer(8, 4, depth=1, pool="map", **own)
