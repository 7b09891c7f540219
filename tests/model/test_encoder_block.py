"""The parts of the encoder, against torch's and against values computed by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, randomised
from vit.model.encoder_block import EncoderBlock

B, N, H, D = 2, 5, 3, 7  # D channels in each of H heads


def with_constant_branches(attn=1.0, mlp=10.0, **kwargs):
    """A block whose attention and MLP each output a constant."""
    block = EncoderBlock(H * D, H, **kwargs)
    for projection, constant in ((block.attn.proj, attn), (block.mlp.fc2, mlp)):
        nn.init.zeros_(projection.weight)
        nn.init.constant_(projection.bias, constant)
    return block


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_block_equals_the_pre_norm_layer_of_torch_with_the_same_weights(mode):
    ours = randomised(EncoderBlock(H * D, H, mlp_ratio=2.5))
    theirs = nn.TransformerEncoderLayer(
        H * D, H, 52, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj": "self_attn.out_proj", "mlp.fc": "linear"}

    def theirs_for(name):
        for our, their in names.items():
            name = name.replace(our, their)
        return name

    theirs.load_state_dict({theirs_for(name): value for name, value in ours.state_dict().items()})
    getattr(ours, mode)()
    getattr(theirs, mode)()
    tokens = torch.randn(B, N, H * D, dtype=torch.float64)
    output, expected = ours(tokens), theirs(tokens)
    assert_close(output, expected, **EXACT)

    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, gradients[theirs_for(name)], **EXACT)


def test_a_block_passes_its_arguments_to_its_parts():
    block = EncoderBlock(H * D, H, mlp_ratio=2.5, qkv_bias=False, qk_norm=True, attention_kwargs={})
    assert block.mlp.fc1.out_features == 52  # 52.5, rounded down
    assert block.attn.qkv.bias is None
    assert block.attn.q_norm.normalized_shape == (D,)
    shifts = [
        EncoderBlock(H * D, H, attention="window", **index).attn.mechanism.shift for index in ({}, {"block_index": 1})
    ]
    assert shifts == [0, 2]
    with pytest.raises(ValueError, match="unknown attention 'quantum'"):
        EncoderBlock(H * D, H, attention="quantum")
    with pytest.raises(ValueError, match="'softmax' has no argument 'strangeness': it takes scaled"):
        EncoderBlock(H * D, H, attention_kwargs={"strangeness": 1})


def test_a_block_passes_mask_and_angles_to_its_attention():
    block = randomised(EncoderBlock(H * 8, H, mlp="swiglu", norm_eps=1e-3))
    assert block.norm1.eps == block.norm2.eps == 1e-3
    tokens, angles = torch.randn(B, N, H * 8, dtype=torch.float64), torch.randn(B, N, 4, dtype=torch.float64)
    mask = torch.rand(B, 1, 1, N) < 0.7
    mixed = tokens + block.attn(block.norm1(tokens), mask=mask, angles=angles)
    expected = mixed + block.mlp(block.norm2(mixed))
    assert_close(block(tokens, mask=mask, angles=angles), expected, **EXACT)


def test_a_block_drops_channels_of_each_branch_while_training():
    torch.manual_seed(0)
    block = with_constant_branches(dropout=0.5)
    tokens = torch.zeros(2, 11, H * D)
    assert block(tokens).unique().tolist() == [0.0, 2.0, 20.0, 22.0]
    assert block.eval()(tokens).unique().tolist() == [11.0]


def test_a_block_skips_each_branch_per_image_while_training():
    torch.manual_seed(0)
    block = with_constant_branches(drop_path=0.5)
    tokens = torch.zeros(64, N, H * D)
    images = block(tokens).flatten(1)
    assert_close(images, images[:, :1].expand_as(images), rtol=0, atol=0)
    assert images.unique().tolist() == [0.0, 2.0, 20.0, 22.0]
    assert block.eval()(tokens).unique().tolist() == [11.0]


def test_a_block_scales_each_branch():
    block = with_constant_branches(layer_scale=0.5)
    assert block(torch.zeros(1, N, H * D)).unique().tolist() == [5.5]
    nn.init.constant_(block.ls1.gamma, 3.0)
    nn.init.constant_(block.ls2.gamma, 7.0)
    assert block(torch.zeros(1, N, H * D)).unique().tolist() == [73.0]
