"""Blocks with other norms and without residual connections, against torch's layers and their formulas."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from vit.attention.multihead import Group
from vit.capture import capture_attention
from vit.inference.class_token_only import reads_class_token_only
from vit.model.encoder_block import EncoderBlock
from vit.model.rewired_block import RewiredBlock

B, N, H, D = 2, 5, 3, 7  # D channels in each of H heads
WIRINGS = [
    {"norm": "post"},
    {"norm": "none"},
    {"residual": False},
    {"residual": False, "norm": "post"},
    {"residual": False, "norm": "none"},
]
SMALL = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 3}


@pytest.fixture
def tokens():
    return torch.randn(B, N, H * D, dtype=torch.float64)


def test_with_norms_after_the_sums_a_block_equals_the_post_norm_layer_of_torch(tokens):
    ours = randomised(RewiredBlock(H * D, H, norm="post", mlp_ratio=2))
    theirs = nn.TransformerEncoderLayer(
        H * D, H, 2 * H * D, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=False
    ).double()
    names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj": "self_attn.out_proj", "mlp.fc": "linear"}

    def theirs_for(name):
        for our, their in names.items():
            name = name.replace(our, their)
        return name

    theirs.load_state_dict({theirs_for(name): value for name, value in ours.state_dict().items()})
    assert_close(ours(tokens), theirs(tokens), **EXACT)


def test_with_norms_before_and_residual_connections_it_is_the_usual_block(tokens):
    usual, rewired = randomised(EncoderBlock(H * D, H)), randomised(RewiredBlock(H * D, H))
    assert_close(rewired(tokens), usual(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("wiring", WIRINGS, ids=str)
def test_each_wiring_is_its_formula(wiring, tokens):
    block = randomised(RewiredBlock(H * D, H, layer_scale=0.5, **wiring))
    norm, expected = wiring.get("norm", "pre"), tokens
    steps = ((block.norm1, block.attn, block.ls1), (block.norm2, block.mlp, block.ls2))
    for layer_norm, branch, scale in steps:
        added = scale(branch(layer_norm(expected) if norm == "pre" else expected))
        expected = expected + added if wiring.get("residual", True) else added
        expected = layer_norm(expected) if norm == "post" else expected
    assert_close(block(tokens), expected, **EXACT)
    kinds = {"pre": nn.LayerNorm, "post": nn.LayerNorm, "none": nn.Identity}
    assert type(block.norm1) is type(block.norm2) is kinds[norm]


def test_mask_and_angles_reach_the_attention(tokens):
    block = randomised(RewiredBlock(H * 8, H, residual=False, norm="none"))
    tokens, angles = torch.randn(B, N, H * 8, dtype=torch.float64), torch.randn(N, 4, dtype=torch.float64)
    mask = torch.rand(B, 1, 1, N) < 0.7
    expected = block.mlp(block.attn(tokens, mask=mask, angles=angles))
    assert_close(block(tokens, mask=mask, angles=angles), expected, **EXACT)


def test_a_model_with_the_default_wiring_is_made_of_usual_blocks():
    assert {type(block) for block in vit.VisionTransformer(**SMALL).blocks} == {EncoderBlock}


@pytest.mark.parametrize("wiring", WIRINGS, ids=str)
def test_a_model_is_saved_captured_and_encoded_in_batches_of_several_sizes(wiring, tmp_path):
    model = randomised(vit.VisionTransformer(**SMALL, **wiring))
    images = torch.randn(2, 3, 6, 10).double()
    vit.save(model, tmp_path / "m.safetensors")
    again = vit.load(tmp_path / "m.safetensors").double()
    assert {name: again.config[name] for name in ("norm", "residual")} == {"norm": "pre", "residual": True} | wiring
    assert_close(again(images), model(images), rtol=0, atol=0)
    assert [attn.shape for attn in capture_attention(model, images)] == 2 * [(2, 3, 16, 16)]
    assert_close(model.forward_mixed([*images]), model(images), **EXACT)


@pytest.mark.parametrize("wiring", WIRINGS, ids=str)
def test_shortcuts_that_know_the_usual_block_leave_others_alone(wiring):
    model = vit.VisionTransformer(**SMALL, **wiring).eval()
    assert not reads_class_token_only(model)
    with pytest.raises(ValueError, match="only pre-norm blocks with residual connections are merged"):
        vit.model.TokenMerging(model, r=2)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_only_the_norms_of_the_blocks_differ_in_size(residual, norm):
    usual, model = vit.VisionTransformer(**SMALL), vit.VisionTransformer(**SMALL, residual=residual, norm=norm)
    missing = usual.state_dict().keys() - model.state_dict().keys()
    assert model.state_dict().keys() <= usual.state_dict().keys()
    assert {name.split(".")[2] for name in missing} == ({"norm1", "norm2"} if norm == "none" else set())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"norm": "sandwich"}, "unknown norm 'sandwich': choose 'pre', 'post' or 'none'"),
        ({"residual": "no"}, r"residual \('no'\) must be True or False"),
        ({"residual": False, "drop_path": 0.1}, r"drop_path \(0.1\) skips a branch, and nothing is left of a token"),
    ],
)
def test_wirings_that_cannot_be_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        vit.VisionTransformer(**SMALL, **kwargs)


def test_packed_sequences_are_refused(tokens):
    block = RewiredBlock(H * D, H, norm="post").double()
    with pytest.raises(ValueError, match=r"norm 'post' and residual True have no packed form: call forward for seq"):
        block.forward_packed(tokens[:1], [Group(1, N, None)])
