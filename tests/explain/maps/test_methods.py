"""The contract of all methods, on all models."""

import copy
import inspect
import re

import pytest
import torch
from torch.testing import assert_close

import vit.explain
from vit.explain import CLASS_AGNOSTIC, CONTROLS, METHODS, explain
from vit.explain.maps.methods import signed_map
from vit.explain.maps.subject import Subject

IMAGES = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
EACH_METHOD = pytest.mark.parametrize("method", METHODS)
FEWER = {"integrated_gradients": {"steps": 2}, "smoothgrad": {"samples": 2}}


def fits(method, name):
    """Whether tokens can be left out of the model, if the method leaves out tokens."""
    return method != "token_drop" or name not in (
        "ours, window",
        "ours, neighborhood",
        "ours, sparse",
        "vit-pytorch, SimpleViT, registers",
    )


def test_there_are_fourteen_methods_and_they_are_named():
    assert list(METHODS) == [
        *("attention", "rollout", "gradient_rollout", "relevance", "legrad", "gradcam", "input_gradient"),
        *("integrated_gradients", "smoothgrad", "occlusion", "token_drop", "random", "uniform", "center"),
    ]
    assert CONTROLS == ("random", "uniform", "center")
    assert CLASS_AGNOSTIC == ("attention", "rollout", "random", "uniform", "center")


def test_every_public_name_resolves():
    assert [name for name in vit.explain.__all__ if not hasattr(vit.explain, name)] == []


def test_every_method_is_documented_with_its_formula_and_options():
    for name, method in METHODS.items():
        assert "-> (B, rows, columns)" in method.__doc__, name
        options = list(inspect.signature(method).parameters)[1:]
        assert all(f"    {option}: " in method.__doc__ for option in options), name


@EACH_METHOD
def test_maps_are_one_finite_number_of_at_least_zero_for_each_patch(method, name, architecture, model):
    if not fits(method, name):
        pytest.skip("tokens of this model cannot be left out, which is tested elsewhere")
    options = FEWER.get(method, {})
    found = explain(model, architecture.images(3), method, **options)
    assert found.shape == (3, *architecture.grid)
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert not found.requires_grad
    alone = explain(model, architecture.images(3)[:1], method, **options)
    assert alone.shape == (1, *architecture.grid)
    if method not in ("smoothgrad", "random", "input_gradient"):  # their noise is drawn for the batch
        assert_close(alone, found[:1], rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


@EACH_METHOD
@pytest.mark.parametrize("name", ["ours, softmax", "timm, avg", "torchvision", "transformers, ViT", "vit-pytorch, ViT"])
def test_maps_are_the_same_where_the_caller_wants_no_gradients(method, name, architectures, model_of):
    images, options = architectures[name].images(), FEWER.get(method, {})
    expected = explain(model_of(name), images, method, **options)
    with torch.no_grad():
        assert_close(explain(model_of(name), images, method, **options), expected)
        assert not torch.is_grad_enabled()


@EACH_METHOD
@pytest.mark.parametrize("name", ["ours, softmax", "timm, avg", "torchvision", "transformers, ViT", "vit-pytorch, ViT"])
def test_maps_of_frozen_models_are_the_same(method, name, architectures, model_of):
    images, options = architectures[name].images(), FEWER.get(method, {})
    frozen = copy.deepcopy(model_of(name)).requires_grad_(False)
    assert_close(explain(frozen, images, method, **options), explain(model_of(name), images, method, **options))
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@EACH_METHOD
def test_images_and_weights_are_not_changed(method, random_vit):
    model, images = random_vit(), IMAGES.clone()
    before = copy.deepcopy(model.state_dict())
    explain(model, images, method)
    assert torch.equal(images, IMAGES)
    assert not images.requires_grad
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@EACH_METHOD
def test_a_map_asks_for_a_class_unless_it_is_class_agnostic(method, random_vit):
    model = random_vit()
    same = explain(model, IMAGES, method, 1).allclose(explain(model, IMAGES, method, 4))
    assert same == (method in CLASS_AGNOSTIC)


@EACH_METHOD
def test_explain_is_the_signed_map_without_what_speaks_against(method, random_vit):
    model = random_vit()
    signed = signed_map(method, Subject(model, IMAGES, 1, 4))
    assert_close(explain(model, IMAGES, method, 1, versus=4), signed.clamp(min=0), rtol=0, atol=0)
    negative = {"input_gradient", "integrated_gradients", "occlusion", "token_drop"}
    assert (signed < 0).any() == (method in negative)


def test_rollout_is_the_default(random_vit):
    assert_close(explain(random_vit(), IMAGES), explain(random_vit(), IMAGES, "rollout"), rtol=0, atol=0)


@EACH_METHOD
def test_a_tensor_of_targets_is_one_for_each_image(method, random_vit):
    model, targets = random_vit(), torch.tensor([1, 4, 2])
    one_by_one = [explain(model, IMAGES, method, target)[i] for i, target in enumerate([1, 4, 2])]
    assert_close(explain(model, IMAGES, method, targets), torch.stack(one_by_one))
    assert_close(explain(model, IMAGES, method, torch.tensor(4)), explain(model, IMAGES, method, 4))


# Refusals.


def test_an_unknown_method_is_refused_with_those_there_are(random_vit):
    with pytest.raises(ValueError, match=f"unknown method 'lime': choose one of {', '.join(METHODS)}$"):
        explain(random_vit(), IMAGES, "lime")


@EACH_METHOD
def test_an_unknown_option_is_refused_with_those_there_are(method, random_vit):
    takes = ", ".join(list(inspect.signature(METHODS[method]).parameters)[1:]) or "none"
    with pytest.raises(ValueError, match=f"method '{method}' has no argument 'strangeness': it takes {takes}$"):
        explain(random_vit(), IMAGES, method, strangeness=1)


@pytest.mark.parametrize("which", ["target", "versus"])
@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (7, "{} (7) must be classes from 0 to 6"),
        (-1, "{} (-1) must be classes from 0 to 6"),
        (1.5, "{} (1.5) must be classes from 0 to 6"),
        (torch.tensor([0, 1, 7]), "{} ([0, 1, 7]) must be classes from 0 to 6"),
        (torch.tensor([0, 1]), "{} has shape (2,) for 3 images: give one class, or one for each"),
        (torch.tensor([[0, 1, 2]]), "{} has shape (1, 3) for 3 images: give one class, or one for each"),
    ],
    ids=str,
)
def test_classes_that_do_not_exist_are_refused(which, classes, message, random_vit):
    chosen = {"target": 0, which: classes}
    with pytest.raises(ValueError, match=re.escape(message.format(which))):
        explain(random_vit(), IMAGES, "relevance", **chosen)


@EACH_METHOD
def test_a_model_in_training_and_images_without_a_batch_are_refused(method, random_vit):
    with pytest.raises(ValueError, match="training mode"):
        explain(random_vit().train(), IMAGES, method)
    with pytest.raises(ValueError, match=r"images have shape \(3, 6, 10\): give"):
        explain(random_vit(), IMAGES[0], method)


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients", "smoothgrad"])
def test_a_hierarchy_is_explained_by_what_needs_no_attention(method):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    swin = timm.models.SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(1, 1), num_heads=(2, 2), num_classes=7
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    assert explain(swin, images, method, grid=(4, 4)).shape == (2, 4, 4)
    assert signed_map(method, Subject(swin, images, given_grid=(4, 4))).std() > 0
    with pytest.raises(ValueError, match="attends within windows"):
        explain(swin, images, "rollout", grid=(4, 4))


@pytest.mark.parametrize("method", ["rollout", "relevance", "input_gradient"])
def test_a_map_is_the_same_in_inference_mode(method, random_vit):
    model, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    expected = explain(model, images, method)
    with torch.inference_mode():
        assert_close(explain(model, images, method), expected)
        explain(model, images + 0, method)  # images that were made in it


def test_a_class_may_be_an_integer_of_any_type(random_vit):
    model, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    classes = torch.tensor([1, 0], dtype=torch.int32)
    assert_close(explain(model, images, "relevance", classes), explain(model, images, "relevance", classes.long()))
