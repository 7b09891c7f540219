"""The parts of the blocks, against timm's and against values computed by hand."""

import pytest
import torch
from timm.layers import AttentionPoolLatent, SwiGLUPacked
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from vit.model.layers import ACTIVATIONS, AttentionPool, DropPath, LayerScale, Mlp, PatchDrop, SwiGLU, make_mlp


def test_an_mlp_is_two_linear_layers_with_an_exact_gelu_between():
    mlp = randomised(Mlp(5, 11))
    tokens = torch.randn(2, 3, 5, dtype=torch.float64)
    hidden = tokens @ mlp.fc1.weight.T + mlp.fc1.bias
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    assert_close(mlp(tokens), hidden @ mlp.fc2.weight.T + mlp.fc2.bias, **EXACT)


def test_an_mlp_drops_channels_after_each_layer_while_training():
    torch.manual_seed(0)
    mlp = Mlp(7, 7, dropout=0.5)
    nn.init.zeros_(mlp.fc1.weight)
    nn.init.constant_(mlp.fc1.bias, 20.0)  # GELU(20) = 20
    nn.init.eye_(mlp.fc2.weight)
    nn.init.ones_(mlp.fc2.bias)
    tokens = torch.randn(2, 11, 7)
    # Hidden channels are 0 or 40, then 1 is added, then they are doubled or dropped.
    assert mlp(tokens).unique().tolist() == [0.0, 2.0, 82.0]
    assert mlp.eval()(tokens).unique().tolist() == [21.0]


def test_an_mlp_has_the_activation_of_its_name():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    expected = {
        "gelu": nn.functional.gelu(x),
        "gelu_tanh": nn.functional.gelu(x, approximate="tanh"),
        "quick_gelu": x / (1 + (-1.702 * x).exp()),
    }
    assert expected.keys() == ACTIVATIONS.keys()
    for name, values in expected.items():
        assert_close(Mlp(5, 11, activation=name).act(x), values, **EXACT)
    assert isinstance(make_mlp("swiglu", 5, 11, 0.0), SwiGLU)
    with pytest.raises(ValueError, match="unknown mlp 'relu': choose 'gelu', 'gelu_tanh', 'quick_gelu' or 'swiglu'"):
        make_mlp("relu", 5, 11, 0.0)
    with pytest.raises(ValueError, match="unknown activation 'swiglu': choose 'gelu', 'gelu_tanh' or 'quick_gelu'"):
        Mlp(5, 11, activation="swiglu")


def test_swiglu_is_that_of_timm_with_the_same_weights():
    theirs, ours = randomised(SwiGLUPacked(5, 22)), SwiGLU(5, 11).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    tokens = torch.randn(2, 3, 5, dtype=torch.float64)
    assert_close(ours(tokens), theirs(tokens), **EXACT)


def test_swiglu_drops_channels_after_each_layer_while_training():
    torch.manual_seed(0)
    mlp = SwiGLU(3, 7, dropout=0.5)
    nn.init.zeros_(mlp.fc1.weight)
    nn.init.constant_(mlp.fc1.bias, 40.0)  # silu(40) = 40
    nn.init.constant_(mlp.fc2.weight, 1 / 1600)
    nn.init.zeros_(mlp.fc2.bias)
    values = mlp(torch.randn(2, 101, 3)).unique()
    assert values.min() == 0
    assert set((values / 4).round(decimals=3).tolist()) <= set(range(8))  # 0 to 7 kept channels of 2, then twice that
    assert_close(mlp.eval()(torch.randn(1, 1, 3)), torch.full((1, 1, 3), 7.0))


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


def test_layer_scale_is_a_learned_factor_per_channel():
    scale = LayerScale(3, 1e-4)
    assert_close(scale.gamma, nn.Parameter(torch.full((3,), 1e-4)), rtol=0, atol=0)
    with torch.no_grad():
        scale.gamma.copy_(torch.tensor([2.0, 3.0, 5.0]))
    assert scale(torch.tensor([[[1.0, 10.0, 100.0]]])).tolist() == [[[2.0, 30.0, 500.0]]]


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True)])
def test_drop_path_is_the_identity_in_eval_mode_and_at_probability_zero(probability, training):
    tokens = torch.randn(2, 3, 5)
    assert DropPath(probability).train(training)(tokens) is tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_drop_path_zeroes_or_scales_each_image_and_preserves_the_mean(dtype):
    torch.manual_seed(0)
    factors = DropPath(0.25)(torch.ones(10_007, 3, 5, dtype=dtype))
    assert factors.dtype == dtype
    assert_close(factors, factors[:, :1, :1].expand_as(factors), rtol=0, atol=0)
    assert factors.unique().tolist() == [0.0, torch.tensor(4 / 3, dtype=dtype).item()]
    # The standard error of the mean of 10,007 factors is 0.0058.
    assert factors[:, 0, 0].double().mean().item() == pytest.approx(1.0, abs=0.025)


def test_drop_path_may_be_changed_in_the_course_of_a_training():
    drop, tokens = DropPath(0.0), torch.ones(64, 3, 5)
    drop.probability = 0.75
    assert drop(tokens).unique().tolist() == [0.0, 4.0]
    drop.probability = 0.0
    assert drop(tokens) is tokens
    with pytest.raises(ValueError, match=r"drop_path \(1.5\)"):
        drop.probability = 1.5


def test_drop_path_shows_its_probability():
    assert repr(DropPath(0.1)) == "DropPath(probability=0.1)"


def numbered(images: int, prefix: int, patches: int) -> torch.Tensor:
    """Tokens whose channels are their position: (B, prefix + N, 3)."""
    return torch.arange(float(prefix + patches))[None, :, None].expand(images, -1, 3)


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 6), (0.25, 8), (0.9, 1), (0.99, 1)])
def test_patch_drop_keeps_the_prefix_and_a_share_of_the_patches(rate, kept):
    tokens = PatchDrop(rate)(numbered(2, 2, 11), 2)[0]
    assert tokens.shape == (2, 2 + kept, 3)
    assert tokens[:, :2, 0].tolist() == [[0, 1]] * 2
    for image in tokens[:, 2:]:
        numbers = image[:, 0].tolist()
        assert len(set(numbers)) == kept
        assert numbers == sorted(numbers)
        assert set(numbers) <= set(range(2, 13))
        assert (image == image[:, :1]).all()


def test_patch_drop_keeps_the_rotary_angles_of_the_tokens_that_it_keeps():
    tokens, angles = PatchDrop(0.5)(numbered(3, 2, 11), 2, torch.arange(13.0)[:, None].expand(-1, 2))
    assert_close(angles, tokens[..., :2], rtol=0, atol=0)
    untouched = torch.randn(13, 2)
    assert PatchDrop(0.5).eval()(numbered(3, 2, 11), 2, untouched)[1] is untouched


@pytest.mark.parametrize("pos_embed", ["learned", "rope"])
def test_drawn_numbers_are_those_of_the_patches_that_a_training_step_keeps(pos_embed):
    sizes = {"image_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "pos_embed": pos_embed}
    model, images = vit.VisionTransformer(**sizes, patch_drop=0.75).train(), torch.randn(3, 3, 16, 16)
    torch.manual_seed(1)
    dropped = model.forward_features(images)
    torch.manual_seed(1)
    kept = model.patch_drop.draw(3, 16)
    assert kept.shape == (3, 4)
    assert torch.equal(model.forward_features(images, keep=kept), dropped)


def test_patch_drop_is_independent_for_each_image_and_uniform():
    drop, tokens = PatchDrop(0.5), numbered(4000, 1, 8)
    kept = drop(tokens, 1)[0][:, 1:, 0].long()
    frequencies = torch.bincount(kept.flatten(), minlength=9)[1:] / 4000
    assert (frequencies - 0.5).abs().max() < 0.05
    assert len({tuple(sorted(row)) for row in kept.tolist()}) == 70  # all ways to choose 4 of 8


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_patch_drop_is_the_identity_in_eval_mode_and_at_rate_zero(rate, training):
    tokens = numbered(2, 1, 5)
    assert PatchDrop(rate).train(training)(tokens, 1)[0] is tokens


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match=rf"patch_drop \({rate}\) must be in \[0, 1\)"):
        PatchDrop(rate)
