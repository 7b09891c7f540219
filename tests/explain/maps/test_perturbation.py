"""Maps made by removing patches, against patches removed by hand; and the control maps."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES, ROWS, TARGET, VERSUS
from tests.capture.wrapped_model import Around
from vit.explain import PatchToken, explain
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.maps.fewer_tokens import can_drop
from vit.explain.maps.methods import signed_map
from vit.explain.maps.subject import Subject

ROUNDED = {"rtol": 1e-6, "atol": 1e-6, "check_dtype": False}  # Captum counts in float32
PLACES = [(row, column) for row in range(3) for column in range(5)]


def signed(method, model, images=IMAGES, target=TARGET, versus=VERSUS, **options):
    return signed_map(method, Subject(model, images, target, versus), **options)


def score(logits):
    return logits[ROWS, TARGET] - logits[ROWS, VERSUS]


@pytest.fixture
def at_once(request, monkeypatch):
    """How many images may pass together."""
    monkeypatch.setattr("vit.explain.maps.perturbation.SAMPLES_AT_ONCE", request.param)


@pytest.mark.parametrize("at_once", [1, 7, 256], indirect=True)
def test_occlusion_is_the_loss_of_the_score_with_a_grey_patch(at_once, random_vit):
    model, expected = random_vit(), torch.zeros(3, 3, 5, dtype=torch.float64)
    for row, column in PLACES:
        grey = IMAGES.clone()
        grey[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0
        expected[:, row, column] = (score(model(IMAGES)) - score(model(grey))).detach()
    assert_close(signed("occlusion", model), expected, **ROUNDED)
    assert (expected < 0).any()


def cropping(random_vit):
    """A model that sees rows 1 to 6 and columns 2 to 11 of images of 9 x 13 pixels alone, and such images."""
    images = torch.randn(3, 3, 9, 13, generator=torch.Generator().manual_seed(3)).double()
    return Around(random_vit(), lambda vit, images: vit(images[..., 1:7, 2:12])).eval(), images


def without_cell(images, row, column):
    grey = images.clone()
    grey[:, :, 1 + 2 * row : 3 + 2 * row, 2 + 2 * column : 4 + 2 * column] = 0
    return grey


def test_occlusion_paints_the_pixels_that_a_patch_sees(random_vit):
    model, images = cropping(random_vit)
    expected = torch.zeros(3, 3, 5, dtype=torch.float64)
    for row, column in PLACES:
        expected[:, row, column] = (score(model(images)) - score(model(without_cell(images, row, column)))).detach()
    assert_close(signed("occlusion", model, images), expected, **ROUNDED)


def test_patches_that_are_painted_grey_are_those_that_the_model_sees(random_vit):
    model, images = cropping(random_vit)
    subject = Subject(model, images)
    for patch, (row, column) in enumerate(PLACES):
        painted = subject.paint_grey(torch.full((3, 1), patch))
        assert_close(painted, without_cell(images, row, column), rtol=0, atol=0)
    every = subject.paint_grey(torch.arange(15).expand(3, -1))
    assert torch.equal(every == 0, F.pad(torch.ones(3, 3, 6, 10), (2, 1, 1, 2)).bool())


def test_pixel_gradients_are_added_up_over_the_pixels_that_a_patch_sees(random_vit):
    model, images = cropping(random_vit)
    images.requires_grad_()
    (slope,) = torch.autograd.grad(score(model(images)).sum(), images)
    by_pixel = (slope * images)[..., 1:7, 2:12].sum(dim=1)
    expected = by_pixel.unflatten(1, (3, 2)).unflatten(3, (5, 2)).sum(dim=(2, 4)).detach()
    assert_close(signed("input_gradient", model, images.detach()), expected, **EXACT)


@pytest.mark.parametrize("method", ["occlusion", "token_drop"])
def test_a_score_that_rounds_by_much_of_what_patches_change_comes_with_a_warning(method, random_vit):
    model = random_vit().float()
    images = IMAGES.float()
    exact = signed(method, model, images)
    with torch.no_grad():
        model.head.bias += 1e5 * torch.arange(len(model.head.bias))
    with pytest.warns(
        UserWarning, match=r"the score of image 0 rounds by \S+, and its patches change it by \S+ at most"
    ):
        rounded = signed(method, model, images)
    assert not torch.allclose(exact, rounded, rtol=1e-2)


def test_occluded_patches_may_be_oblong(random_vit):
    model = random_vit(patch_size=(2, 5))
    grey = IMAGES.clone()
    grey[:, :, 2:4, 5:] = 0
    expected = (score(model(IMAGES)) - score(model(grey))).detach()
    assert_close(signed("occlusion", model)[:, 1, 1], expected, **ROUNDED)


@pytest.mark.parametrize(
    ("kwargs", "prefix", "at_once"),
    [
        ({}, 1, 1),
        ({"num_registers": 2}, 3, 7),
        ({"pool": "mean", "class_token": False}, 0, 256),
        ({"pool": "cls+mean"}, 1, 256),
        ({"attention": "talking"}, 1, 256),
    ],
    ids=str,
    indirect=["at_once"],
)
def test_token_drop_is_the_loss_of_the_score_without_the_token(at_once, kwargs, prefix, random_vit):
    model, expected = random_vit(**kwargs), torch.zeros(3, 3, 5, dtype=torch.float64)
    tokens, whole = model.embed(IMAGES), score(model(IMAGES))
    for place, (row, column) in enumerate(PLACES):
        without = torch.cat([tokens[:, : prefix + place], tokens[:, prefix + place + 1 :]], dim=1)
        for block in model.blocks:
            without = block(without)
        expected[:, row, column] = (whole - score(model.forward_head(model.norm(without)))).detach()
    assert_close(signed("token_drop", model), expected, **EXACT)
    assert (expected < 0).any()


def test_token_drop_of_timm_is_that_of_the_same_weights_in_ours(architectures, model_of, random_vit):
    model, images = random_vit(num_registers=2), architectures["timm, registers"].images()
    model.load_state_dict(model_of("timm, registers").state_dict())
    expected = explain(model, images, "token_drop", 3)
    assert_close(explain(model_of("timm, registers"), images, "token_drop", 3), expected, **EXACT)


@pytest.mark.parametrize("attention", ["window", "neighborhood", "sparse"])
def test_tokens_of_attention_on_the_grid_cannot_be_dropped(attention, random_vit):
    with pytest.raises(
        ValueError, match=r"tokens of VisionTransformer cannot be left out, .* grid, .*: choose 'occlusion'"
    ):
        explain(random_vit(attention=attention), IMAGES, "token_drop")


def test_tokens_that_the_model_counts_cannot_be_dropped(architectures, model_of):
    name = "vit-pytorch, SimpleViT, registers"
    with pytest.raises(ValueError, match=r"tokens of SimpleViT cannot be left out, .*: choose 'occlusion'"):
        explain(model_of(name), architectures[name].images(), "token_drop")


class PositionsByOrder(nn.Module):
    """Adds positions to the tokens of each layer by their order, as rotary positions do."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.positions = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))

    def forward(self, images):
        tokens = self.vit.embed(images)
        for block in self.vit.blocks:
            tokens = block(tokens + self.positions[: tokens.shape[1]])
        return self.vit.forward_head(self.vit.norm(tokens))


def test_any_error_of_a_model_that_has_fewer_tokens_is_one_reason(random_vit):
    model = random_vit()

    def look_up(_, args):
        return {16: args}[args[0].shape[1]]

    model.blocks[1].register_forward_pre_hook(look_up)
    assert explain(model, IMAGES, "rollout").shape == (3, 3, 5)
    with pytest.raises(ValueError, match="tokens of VisionTransformer cannot be left out"):
        explain(model, IMAGES, "token_drop")


def test_tokens_whose_positions_are_their_order_cannot_be_dropped(random_vit):
    model = PositionsByOrder(random_vit()).eval()
    with pytest.raises(ValueError, match="or it finds or counts tokens by their order: choose 'occlusion'"):
        explain(model, IMAGES, "token_drop")
    with pytest.raises(ValueError, match="tokens of PositionsByOrder cannot be left out"):
        removal_curves(Subject(model, IMAGES), torch.rand(3, 3, 5))


def test_the_token_of_a_patch_is_read_by_its_order(random_vit):
    with pytest.raises(ValueError, match="tokens of PatchToken cannot be left out"):
        explain(PatchToken(random_vit(num_classes=0), IMAGES, 1, 2), IMAGES, "token_drop")


# Control maps.


def test_center_is_a_bell_of_a_quarter_of_the_side(random_vit):
    model, images = random_vit(image_size=(6, 2)), torch.randn(2, 3, 6, 2).double()
    expected = torch.tensor([math.exp(-0.5), 1.0, math.exp(-0.5)], dtype=torch.float64)
    assert_close(explain(model, images, "center"), expected.reshape(1, 3, 1).expand(2, 3, 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("columns", [1, 5, 6])
def test_center_is_symmetric_and_falls_from_the_middle(rows, columns, random_vit):
    bell = signed("center", random_vit(), images=torch.randn(1, 3, 2 * rows, 2 * columns).double(), target=1)[0]
    assert bell.shape == (rows, columns)
    assert_close(bell, bell.flip(0))
    assert_close(bell, bell.flip(1))
    assert bell.max() == bell[rows // 2, columns // 2]
    assert (bell[: (rows + 1) // 2].diff(dim=0) > 0).all()
    assert (bell[:, : (columns + 1) // 2].diff(dim=1) > 0).all()
    assert ((bell > 0) & (bell <= 1)).all()


def test_uniform_is_one_everywhere(random_vit):
    assert_close(explain(random_vit(), IMAGES, "uniform"), torch.ones(3, 3, 5, dtype=torch.float64), rtol=0, atol=0)


def test_random_is_reproducible_and_its_own_for_each_image_and_seed(random_vit):
    model = random_vit()
    torch.manual_seed(0)
    first = explain(model, IMAGES, "random")
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert_close(explain(model, IMAGES, "random"), first, rtol=0, atol=0)
    assert_close(explain(model, IMAGES, "random", seed=0), first, rtol=0, atol=0)
    torch.manual_seed(0)
    explain(model, IMAGES, "random")
    assert torch.equal(torch.get_rng_state(), state)
    assert not explain(model, IMAGES, "random", seed=1).isclose(first).any()
    assert not first[0].isclose(first[1]).any()
    assert ((first >= 0) & (first < 1)).all()
    assert first.std() > 0.2


def test_tokens_of_rotated_positions_cannot_be_dropped():
    import timm

    model = timm.create_model(
        "eva02_tiny_patch14_224", img_size=28, patch_size=7, depth=1, embed_dim=24, num_heads=2, num_classes=3
    ).eval()
    subject = Subject(model, torch.randn(2, 3, 28, 28))
    assert not can_drop(subject)
    with pytest.raises(ValueError, match="choose 'occlusion'"):
        signed_map("token_drop", subject)


def test_small_outputs_do_not_hide_that_positions_are_the_order_of_tokens(random_vit):
    model = Around(PositionsByOrder(random_vit()), lambda vit, images: 1e-6 * vit(images)).eval()
    assert not can_drop(Subject(model, IMAGES))
    assert can_drop(Subject(Around(random_vit(), lambda vit, images: 1e-6 * vit(images)).eval(), IMAGES))
