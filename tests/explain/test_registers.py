"""Registers at test time, on a model with two neurons that make outliers by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import made, randomised
from vit.explain import add_register, capture_attention
from vit.explain.registers import RegisterLinear

NEURONS = [(1, 7), (1, 20)]
BRIGHT = 5, 17  # patches of the images that set the neurons off


@pytest.fixture(scope="module")
def images():
    """Sixteen images of noise, with two bright patches, whose tokens are not much longer than others."""
    images = 0.5 * torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    for patch in BRIGHT:
        row, column = divmod(patch, 6)
        images[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0.8
    return images


def with_outliers(images, **changes):
    """A model whose two neurons add a long vector to bright patches, which neither attention nor the head reads."""
    torch.manual_seed(0)
    arguments = {"image_size": 12, "patch_size": 2, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 4}
    model = vit.VisionTransformer(**arguments | changes).eval()
    nn.init.trunc_normal_(model.head.weight, std=1.0)
    block, seen = model.blocks[1], []
    with torch.no_grad(), block.norm2.register_forward_hook(lambda *args: seen.append(args[-1])):
        model(images)
        tokens = seen[0][:, model.num_prefix_tokens :]
        bright = tokens[:, list(BRIGHT)].flatten(0, 1)
        others = tokens[:, [i for i in range(36) if i not in BRIGHT]].flatten(0, 1)
        direction = bright.mean(dim=0) - others.mean(dim=0)
        threshold = (others @ direction).max()
        assert threshold < (bright @ direction).min()
        for number, (_, neuron) in enumerate(NEURONS):
            block.mlp.fc1.weight[neuron] = direction
            block.mlp.fc1.bias[neuron] = -threshold
            long = torch.randn(24, generator=torch.Generator().manual_seed(number))
            block.mlp.fc2.weight[:, neuron] = 40 * (long - long.mean())
    return model


@pytest.fixture(scope="module")
def found(images):
    return add_register(with_outliers(images), images, num_neurons=2)


def test_it_finds_the_neurons_set_by_hand_and_the_layer_of_the_outliers(found):
    assert sorted(found.neurons) == NEURONS
    assert found.layer == 1
    assert 2 / 36 <= found.before.outlier_share < 3 / 36


def test_norms_fall_and_predictions_stay_which_random_neurons_do_not_achieve(found):
    assert found.after.outlier_share == 0
    assert found.after.largest_norm < found.before.largest_norm / 10
    assert found.after.same_predictions == 1
    assert found.random.outlier_share == pytest.approx(found.before.outlier_share, abs=0.01)
    assert found.random.largest_norm > found.before.largest_norm / 2
    assert "moved to a register: after layer" in str(found)
    before, random = (f"{100 * share:.1f} %" for share in (found.before.outlier_share, found.random.outlier_share))
    assert f"outliers are {before} of the patches before, 0.0 % now, and {random} with random neurons" in str(found)


def test_the_control_moves_as_many_neurons_each_once(images, monkeypatch):
    moved, move = [], vit.explain.registers._with_register
    monkeypatch.setattr(vit.explain.registers, "_with_register", lambda *args: moved.append(args[1]) or move(*args))
    found = add_register(with_outliers(images), images, num_neurons=60)
    neurons, drawn = map(list, moved)
    assert neurons == found.neurons
    assert sorted(layer for layer, _ in drawn) == sorted(layer for layer, _ in neurons)
    assert len(set(drawn)) == len(drawn) == 60


def test_the_register_gets_the_largest_activation_and_the_patches_none():
    linear = RegisterLinear(nn.Linear(4, 4, bias=False), [1, 3], register=1)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(4))
    hidden = torch.tensor([[[1.0, 2, 3, 4], [0, 0, 0, 0], [5, -6, 7, 1], [8, 2, 1, 3]]])
    expected = torch.tensor([[[1.0, 2, 3, 4], [0, -6, 0, 3], [5, 0, 7, 0], [8, 0, 1, 0]]])
    assert_close(linear(hidden), expected)


def test_the_copy_has_one_register_more_and_the_model_is_unchanged(images, found):
    model = with_outliers(images)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    added = add_register(model, images, num_neurons=2).model
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert (model.num_prefix_tokens, added.num_prefix_tokens) == (1, 2)
    assert added.config["num_registers"] == 1
    assert {attn.shape for attn in capture_attention(added, images)} == {(16, 3, 38, 38)}
    assert_close(added(images), found.model(images))
    assert added(torch.randn(2, 3, 16, 8)).shape == (2, 4)  # images of another size


def test_a_copy_cannot_be_saved_as_a_model_without_the_moved_neurons(found, tmp_path):
    with pytest.raises(ValueError, match=r"blocks.1.mlp.fc2 is not as model.config describes it"):
        vit.save(found.model, tmp_path / "moved.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_registers": 2, "layer_scale": 1.0},
        {"no_embed_class": True, "pool": "mean"},
        {"class_token": False, "pool": "mean", "pos_embed": "rope"},
    ],
    ids=str,
)
def test_models_with_other_tokens_keep_their_order(changes, images):
    found = add_register(with_outliers(images, **changes), images, num_neurons=2)
    assert sorted(found.neurons) == NEURONS
    assert found.after.outlier_share == 0


def test_a_model_without_outliers_is_refused():
    torch.manual_seed(0)
    model = vit.VisionTransformer(image_size=12, patch_size=2, embed_dim=24, depth=2, num_heads=3).eval()
    with pytest.raises(ValueError, match="none of 144 patches has an outlying norm after any of 2 layers"):
        add_register(model, 0.01 * torch.ones(4, 3, 12, 12))


def test_models_of_other_libraries_and_numbers_of_no_neurons_are_refused(images):
    with pytest.raises(ValueError, match="VisionTransformer is no VisionTransformer of this package: give what"):
        add_register(made("timm"), images)
    model = randomised(vit.VisionTransformer(image_size=12, patch_size=2, embed_dim=24, depth=1, num_heads=3)).float()
    with pytest.raises(ValueError, match=r"num_neurons \(0\)"):
        add_register(model, images, num_neurons=0)
    with pytest.raises(ValueError, match=r"num_neurons \(97\) must be at most 96"):
        add_register(with_outliers(images, depth=2, mlp_ratio=2), images, num_neurons=97)
