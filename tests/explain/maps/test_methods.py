"""The contract of all methods, on all architectures."""

import copy
import inspect
import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit.explain
from tests.architectures import EXACT, IMAGES, TARGET, VERSUS
from tests.capture.wrapped_model import Around
from vit.explain import CLASS_AGNOSTIC, CONTROLS, METHODS, capture_attention, explain
from vit.explain.maps.methods import signed_map
from vit.explain.maps.subject import Subject

EACH_METHOD = pytest.mark.parametrize("method", METHODS)
FEWER = {"integrated_gradients": {"steps": 2}, "smoothgrad": {"samples": 2}}
pytestmark = pytest.mark.filterwarnings("ignore:with steps=2, the sums of these maps miss")  # two are too few

NEED_ALL_TOKENS = tuple(f"ours, {name}" for name in ("window", "neighborhood", "sparse", "convolution", "recurrent"))
NEED_ALL_TOKENS += ("vit-pytorch, SimpleViT, registers",)


NO_RULE = ("ours, recurrent",)  # attnlrp has none for the logarithm of a sigmoid, and says so
VALUES = ("value", "value_rollout")
# A gate or a norm changes what attention has mixed, or there is no projection behind it.
NO_VALUES = ("ours, differential", "ours, gated", "ours, simplified")


def test_the_methods_of_the_public_contract_are_there_and_the_controls_come_last():
    of_attention = {"attention", "rollout", "value", "value_rollout", "gradient_rollout", "relevance", "legrad"}
    of_pixels = {"gradcam", "input_gradient", "integrated_gradients", "smoothgrad", "occlusion", "token_drop"}
    assert METHODS.keys() >= of_attention | of_pixels | {"attnlrp"}
    assert tuple(METHODS)[-len(CONTROLS) :] == CONTROLS
    assert CONTROLS == ("random", "uniform", "center", "edges", "deviation", "ink")


def test_every_public_name_resolves():
    assert [name for name in vit.explain.__all__ if not hasattr(vit.explain, name)] == []


def test_every_method_is_documented_with_its_formula_and_options():
    for name, method in METHODS.items():
        assert "-> (B, rows, columns)" in method.__doc__, name
        options = list(inspect.signature(method).parameters)[1:]
        assert all(f"    {option}: " in method.__doc__ for option in options), name


def test_a_map_of_uneven_cells_comes_with_a_warning_that_names_the_remedy(random_vit):
    model = Around(random_vit(), lambda vit, images: vit(images[..., 1:]))
    with pytest.warns(UserWarning, match=r"Around does not divide these images evenly .*cells=vit.capture.examine"):
        maps = explain(model.eval(), torch.randn(2, 3, 6, 11).double())
    assert maps.shape == (2, 3, 5)


@pytest.mark.filterwarnings("ignore:attention has negative weights")
def test_maps_are_one_finite_number_for_each_patch_on_every_architecture(name, architecture, model):
    several, one = Subject(model, architecture.images(2)), Subject(model, architecture.images(2)[:1])
    for method in METHODS:
        if (method == "token_drop" and name in NEED_ALL_TOKENS) or (method in VALUES and name in NO_VALUES):
            continue
        if method == "attnlrp" and name in NO_RULE:
            with pytest.raises(ValueError, match=r"attnlrp has no rule for .*logsigmoid"):
                signed_map(method, several)
            continue
        if method == "integrated_gradients" and (name.startswith("vit-pytorch") or name == "ours, topk"):
            with pytest.raises(
                ValueError, match=r"do not add up to the difference .* or each patch is normalised first"
            ):
                signed_map(method, several, **FEWER[method])
            continue
        options = FEWER.get(method, {})
        found = signed_map(method, several, **options)
        assert found.shape == (2, *architecture.grid), method
        assert found.isfinite().all(), method
        assert not found.requires_grad, method
        if method not in ("smoothgrad", "random", "input_gradient"):  # their noise is drawn for the batch
            assert_close(signed_map(method, one, **options), found[:1], rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


@EACH_METHOD
@pytest.mark.parametrize("name", ["ours, softmax", "transformers, ViT"])
def test_maps_of_frozen_models_are_the_same_without_gradients_of_the_caller(method, name, architectures, model_of):
    images, options = architectures[name].images(), FEWER.get(method, {})
    frozen = copy.deepcopy(model_of(name)).requires_grad_(False)
    expected = explain(model_of(name), images, method, **options)
    with torch.no_grad():
        assert_close(METHODS[method](Subject(frozen, images), **options).clamp(min=0), expected)
        assert not torch.is_grad_enabled()
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@EACH_METHOD
def test_explain_is_the_signed_map_clamped_at_zero_and_changes_nothing(method, random_vit):
    model, images, options = random_vit(), IMAGES.clone(), FEWER.get(method, {})
    before = copy.deepcopy(model.state_dict())
    signed = signed_map(method, Subject(model, IMAGES, 1, 4), **options)
    assert_close(explain(model, images, method, 1, versus=4, **options), signed.clamp(min=0), rtol=0, atol=0)
    negative = {"input_gradient", "integrated_gradients", "occlusion", "token_drop", "attnlrp"}
    assert (signed < 0).any() == (method in negative)
    assert torch.equal(images, IMAGES)
    assert not images.requires_grad
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@EACH_METHOD
def test_maps_depend_on_the_class_unless_they_are_class_agnostic(method, random_vit):
    model, options = random_vit(), FEWER.get(method, {})
    one, other = (signed_map(method, Subject(model, IMAGES, target), **options) for target in (1, 4))
    assert one.allclose(other) == (method in CLASS_AGNOSTIC)


def test_rollout_is_the_default(random_vit):
    assert_close(explain(random_vit(), IMAGES), explain(random_vit(), IMAGES, "rollout"), rtol=0, atol=0)


@pytest.mark.parametrize(
    "method", ["relevance", "legrad", "gradcam", "integrated_gradients", "smoothgrad", "token_drop"]
)
def test_a_tensor_of_targets_is_one_for_each_image(method, random_vit):
    model, options = random_vit(), FEWER.get(method, {})
    one_by_one = [explain(model, IMAGES, method, target, **options)[i] for i, target in enumerate([1, 4, 2])]
    assert_close(explain(model, IMAGES, method, torch.tensor([1, 4, 2]), **options), torch.stack(one_by_one))
    found = explain(model, IMAGES, method, torch.tensor(4), **options)
    assert_close(found[1], one_by_one[1])


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("smoothgrad", "random")])
def test_images_of_a_batch_do_not_mix(method, random_vit):
    model, options = random_vit(pool="cls+mean"), FEWER.get(method, {})
    alone = [
        signed_map(method, Subject(model, image[None], int(target), int(versus)), **options)
        for image, target, versus in zip(IMAGES, TARGET, VERSUS, strict=True)
    ]
    assert_close(signed_map(method, Subject(model, IMAGES, TARGET, VERSUS), **options), torch.cat(alone), **EXACT)


@EACH_METHOD
def test_maps_have_no_graph_and_leave_no_gradient(method, random_vit):
    model, images = random_vit(), IMAGES.clone().requires_grad_()
    assert not explain(model, images, method, **FEWER.get(method, {})).requires_grad
    assert images.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


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
    subject = Subject(random_vit(depth=1), IMAGES, **{"target": 0, which: classes})
    with pytest.raises(ValueError, match=re.escape(message.format(which))):
        signed_map("relevance", subject)


def test_a_model_in_training_and_images_without_a_batch_are_refused(random_vit):
    with pytest.raises(ValueError, match="training mode"):
        explain(random_vit().train(), IMAGES, "uniform")
    with pytest.raises(ValueError, match=r"images have shape \(3, 6, 10\): give"):
        explain(random_vit(), IMAGES[0], "uniform")


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients", "smoothgrad"])
def test_a_hierarchy_is_explained_by_methods_that_need_no_attention(method):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    swin = timm.models.SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=12, depths=(1, 1), num_heads=(2, 2), num_classes=7
    ).eval()
    images = torch.randn(2, 3, 32, 32)
    found = signed_map(method, Subject(swin, images, grid=(4, 4)), **FEWER.get(method, {}))
    assert found.shape == (2, 4, 4)
    assert found.std() > 0
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


@pytest.mark.parametrize("method", ["rollout", "gradient_rollout", "relevance", "value_rollout"])
def test_maps_that_add_a_skip_connection_are_refused_where_a_layer_has_none(method):
    images = torch.randn(2, 3, 12, 12)
    model = vit.VisionTransformer(
        image_size=12, patch_size=4, embed_dim=12, depth=3, num_heads=3, residual=False
    ).eval()
    with pytest.raises(
        ValueError,
        match=r"layer 0 of VisionTransformer has no skip connection.*or, if no layer has one, rollout with residual=0",
    ):
        explain(model, images, method)


@pytest.mark.parametrize("method", ["attention", "value", "legrad", "gradcam"])
def test_tokens_behind_a_layer_without_a_skip_connection_are_not_drawn_on_patches(method):
    images = torch.randn(2, 3, 12, 12)
    model = vit.VisionTransformer(
        image_size=12, patch_size=4, embed_dim=12, depth=3, num_heads=3, residual=False
    ).eval()
    first = 1 if method == "legrad" else 2  # it draws all layers, the others the last
    expected = rf"a layer before layer {first} of VisionTransformer has no skip.*choose.*occlusion"
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match=expected):
            explain(model.to(dtype), images.to(dtype), method)
    model.float()
    if method != "legrad":
        explain(model, images, method, layer=0)


@pytest.mark.parametrize("method", ["attention", "value", "legrad", "gradcam"])
def test_half_precision_hides_no_patches(method):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 12, 12).bfloat16()
    sizes = {"image_size": 12, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3}
    assert explain(vit.VisionTransformer(**sizes).eval().bfloat16(), images, method).shape == (2, 3, 3)


def test_a_layer_without_values_hides_no_patches():
    model = vit.VisionTransformer(image_size=12, patch_size=4, embed_dim=12, depth=3, num_heads=3).eval()
    with torch.no_grad():
        model.blocks[2].attn.qkv.weight[24:] = 0
    assert explain(model, torch.randn(2, 3, 12, 12), "attention").shape == (2, 3, 3)


def test_rollout_without_a_residual_needs_no_skip_connections():
    images = torch.randn(2, 3, 12, 12)
    model = vit.VisionTransformer(
        image_size=12, patch_size=4, embed_dim=12, depth=2, num_heads=3, residual=False
    ).eval()
    first, last = (attn.mean(dim=1) for attn in capture_attention(model, images))
    expected = (last @ first)[:, 0, 1:].unflatten(1, (3, 3))
    assert_close(explain(model, images, "rollout", residual=0.0), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 3, "versus": 3}, "target and versus are both 3 for image 0: give two classes"),
        ({"target": [1, 4, 2], "versus": 4}, "target and versus are both 4 for image 1: give two classes"),
        ({"target": True}, r"target \(True\) must be classes from 0 to 6"),
        ({"target": torch.tensor([True, False, True])}, r"target \(\[True, False, True\]\) must be classes"),
        ({"target": {"cat": 1}}, r"target \(\{'cat': 1\}\) must be a class, or one for each image"),
        ({"grid": 4}, r"grid \(4\) must be \(rows, columns\)"),
        ({"method": "occlusion", "grid": (0, 4)}, r"grid \(\(0, 4\)\) must be \(rows, columns\)"),
        ({"method": "attention", "layer": 0.5}, r"layer \(0.5\) must be one of 3 layers"),
        ({"method": "attention", "head": True}, r"head \(True\) must be one of 3 heads"),
        ({"method": "integrated_gradients", "steps": 2.5}, r"steps \(2.5\) must be a positive whole number"),
        ({"method": "smoothgrad", "noise": float("nan")}, r"noise \(nan\) must be a number of at least 0"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(options, message, random_vit):
    with pytest.raises(ValueError, match=message):
        explain(random_vit(), IMAGES, **({"method": "relevance"} | options))


def test_no_images_are_refused(random_vit):
    with pytest.raises(ValueError, match="there are no images: give at least one"):
        explain(random_vit(), IMAGES[:0])


class Overflow(nn.Module):
    """Gives one image logits that are no numbers."""

    def __init__(self, vit, row):
        super().__init__()
        self.vit, self.row = vit, row

    def forward(self, images):
        logits = self.vit(images)
        is_bad = torch.arange(len(images))[:, None] == self.row
        return torch.where(is_bad & (images[:, :1, 0, 0] == IMAGES[self.row, 0, 0, 0]), torch.nan, logits)


@pytest.mark.parametrize(
    ("row", "words"), [(0, "the logits of Overflow are NaN"), (2, "the logits of image 2 are NaN")]
)
@pytest.mark.parametrize("method", ["rollout", "occlusion", "relevance"])
def test_logits_that_are_no_numbers_are_refused(method, row, words, random_vit):
    model = Overflow(random_vit(), row).eval()
    with pytest.raises(ValueError, match=words):
        explain(model, IMAGES, method, target=0) if method != "rollout" else Subject(model, IMAGES).logits


def test_a_map_that_is_no_number_is_refused(random_vit, monkeypatch):
    maps = torch.ones(3, 3, 5).index_fill(0, torch.tensor([1]), torch.inf)
    monkeypatch.setitem(METHODS, "broken", lambda subject: maps)
    with pytest.raises(ValueError, match="the broken map of image 1 has NaN or infinite values"):
        signed_map("broken", Subject(random_vit(), IMAGES))


@pytest.mark.parametrize("method", ["occlusion", "input_gradient", "edges"])
def test_a_grid_that_is_not_that_of_the_model_is_refused_by_pixel_methods_too(method, random_vit):
    with pytest.raises(ValueError, match=r"was said to have 1 prefix tokens and 5 x 3 patches"):
        explain(random_vit(), IMAGES, method, grid=(5, 3))


def test_a_number_of_prefix_tokens_that_is_not_that_of_the_model_is_refused_by_pixel_methods_too(random_vit):
    with pytest.raises(ValueError, match="was said to have 3 prefix tokens and 3 x 5 patches"):
        explain(random_vit(), IMAGES, "occlusion", num_prefix_tokens=3)


def test_a_batch_norm_that_was_left_in_training_mode_is_refused_and_keeps_its_averages():
    model = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(60, 5)).eval()
    model[1].train()
    averages = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="'1' of Sequential is in training mode: it normalises by the images of the"):
        explain(model, torch.randn(3, 3, 6, 10), "occlusion", grid=(3, 5))
    assert torch.equal(model[1].running_mean, averages)


def changing_each_other():
    """Models that treat the images of a batch together, though they are in eval mode."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    yield nn.Sequential(nn.Conv2d(3, 4, 2, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(60, 5)).double().eval()
    for coupled in (lambda logits: logits - logits.mean(0), lambda logits: logits / logits.max()):
        linear = nn.Sequential(nn.Flatten(), nn.Linear(180, 5))
        yield Around(linear, lambda vit, x, coupled=coupled: coupled(vit(x))).double().eval()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("method", ["occlusion", "input_gradient", "integrated_gradients", "smoothgrad"])
def test_images_that_change_each_other_are_refused_by_methods_on_pixels_too(method, count):
    for model in changing_each_other():
        with pytest.raises(ValueError, match="the images of a batch change each other"):
            explain(model, IMAGES[:count], method, grid=(3, 5))


@pytest.mark.parametrize("factor", [1.0, 1e-5, 1e-9])
def test_a_random_model_is_refused_however_small_its_logits(factor, random_vit):
    model = Around(random_vit(), lambda vit, x: factor * nn.functional.dropout(vit(x), 0.5, training=True))
    with pytest.raises(ValueError, match="the model is random"):
        explain(model.eval(), IMAGES, "occlusion")


@pytest.mark.parametrize("method", ["occlusion", "input_gradient"])
def test_a_grid_finer_than_the_pixels_is_refused(method):
    model = nn.Sequential(nn.Flatten(), nn.Linear(180, 5)).double().eval()
    with pytest.raises(ValueError, match=r"grid \(12, 5\) has more rows or columns than the images of 6 x 10 pixels"):
        explain(model, IMAGES, method, grid=(12, 5))


def rounded_by_batch(vit, images):
    """Logits that differ between batches of other sizes, as kernels in half precision round."""
    return vit(images) * (1 + 2**-9 * len(images))


def squeezed(vit, images):
    return vit(images)[:, :1].squeeze()


def of_roots(vit, images):
    return vit(images.sqrt())


@pytest.mark.parametrize("run", [rounded_by_batch, squeezed, of_roots])
def test_models_that_round_by_the_batch_or_squeeze_it_or_need_pixels_in_their_range_are_explained(run):
    torch.manual_seed(0)
    model = Around(nn.Sequential(nn.Flatten(), nn.Linear(180, 5)), run).double().eval()
    images = torch.rand(2, 3, 6, 10, dtype=torch.float64)
    assert explain(model, images, "occlusion", grid=(3, 5)).isfinite().all()


def test_near_copies_of_an_image_are_no_scale_of_a_logit_near_zero():
    images = torch.randn(1, 3, 6, 10, dtype=torch.float64)
    images = torch.cat([images, images + 1e-9])
    model = nn.Sequential(nn.Flatten(), nn.Linear(180, 1)).double().eval()
    with torch.no_grad():
        model[1].bias -= model(images[:1])[0]
    assert explain(model, images, "occlusion", target=0, grid=(3, 5)).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda images: images.to(torch.float8_e4m3fn),
        lambda images: torch.nested.nested_tensor(list(images)),
    ],
    ids=["float8", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_images_of_unusual_types_are_one_line(make, random_vit):
    with pytest.raises(ValueError, match="give plain float32 tensors"):
        explain(random_vit().float(), make(IMAGES.float()))


def test_classes_of_any_integer_type_are_classes(random_vit):
    expected = explain(random_vit(), IMAGES, "relevance", TARGET)
    assert_close(explain(random_vit(), IMAGES, "relevance", TARGET.to(torch.uint64)), expected, **EXACT)


def test_sparse_logits_are_one_line(random_vit):
    model = Around(random_vit(), lambda vit, images: vit(images).to_sparse()).eval()
    with pytest.raises(ValueError, match=r"logits that are torch.sparse_coo: return logits.to_dense"):
        explain(model, IMAGES, "occlusion")
