"""Models that take the patches of a later image from other pixels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.test_invented_models import IMAGES, WIDTH, invented
from vit.capture import capture_attention
from vit.explain import explain

SQUARE = torch.cat([IMAGES, IMAGES.flip(0)])[..., :6]  # six images of 6 x 6 pixels, in patches of 2 x 2


def of_square(change):
    """A model that changes images before it cuts them into patches."""
    model = invented(run=lambda model, images: model.read(model.through(model.embed(change(images)))))
    model.positions = torch.nn.Parameter(model.positions[:, :10])
    return model


def turned(images):
    """Bright images are transposed."""
    return torch.where((images.mean(dim=(1, 2, 3)) > 2)[:, None, None, None], images.mT, images)


def shifted(images):
    """Bright images are moved by a pixel."""
    return torch.where((images.mean(dim=(1, 2, 3)) > 2)[:, None, None, None], images.roll(1, -1), images)


def cropped(images):
    """Images whose right half is black are cropped, and enlarged again."""
    left = images[..., :3]
    wide = F.interpolate(left, size=(6, 6), mode="nearest")
    return torch.where((images[..., 3:] == 0).all(dim=(1, 2, 3))[:, None, None, None], wide, images)


def shifted_a_little(images):
    """Bright images are moved by a fifth of a pixel."""
    between = 0.8 * images + 0.2 * images.roll(1, -1)
    return torch.where((images.mean(dim=(1, 2, 3)) > 2)[:, None, None, None], between, images)


def brighter(image):
    return image + 5


def half_black(image):
    return torch.cat([image[..., :3], 0 * image[..., 3:]], dim=-1)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize(
    ("change", "unusual"),
    [(turned, brighter), (shifted, brighter), (cropped, half_black), (shifted_a_little, brighter)],
    ids=["turned", "shifted", "cropped", "shifted a little"],
)
def test_a_later_image_whose_patches_are_of_other_pixels_is_refused(change, unusual, number):
    model, images = of_square(change), SQUARE.clone()
    assert explain(model, images, "rollout").shape == (6, 3, 3)
    images[number] = unusual(images[number])
    with pytest.raises(ValueError, match=f"takes its patches from other pixels of image {number} than of the first"):
        explain(model, images, "rollout")


def test_the_second_of_two_images_is_moved_by_an_eighth_of_its_patches():
    def run(model, images):
        moved = F.pad(images, (1, 0))[..., :-1]
        is_bright = (images.mean(dim=(1, 2, 3)) > 2)[:, None, None, None]
        return model.read(model.through(model.embed(torch.where(is_bright, moved, images))))

    model = invented(run=run)
    model.patches = nn.Conv2d(3, WIDTH, 8, stride=8).double()
    images = torch.randn(2, 3, 24, 40, dtype=torch.float64)
    assert explain(model, images, "rollout").shape == (2, 3, 5)
    images[1] += 5
    with pytest.raises(ValueError, match="takes its patches from other pixels of image 1 than of the first"):
        explain(model, images, "rollout")


@pytest.mark.parametrize("moved", [(1, 0, 0, 0), (0, 0, 1, 0), (2, 0, 0, 0)], ids=["right", "down", "by two"])
@pytest.mark.parametrize("count", [2, 5])
def test_overlapping_patches_are_of_the_same_rows_and_columns_of_pixels(moved, count):
    def run(model, images):
        away = F.pad(images, moved)[..., :24, :40]
        is_bright = (images.mean(dim=(1, 2, 3)) > 2)[:, None, None, None]
        return model.read(model.through(model.embed(torch.where(is_bright, away, images))))

    model = invented(run=run)
    model.patches = nn.Conv2d(3, WIDTH, 16, stride=8, padding=4).double()
    images = torch.randn(count, 3, 24, 40, dtype=torch.float64)
    assert explain(model, images, "rollout").shape == (count, 3, 5)
    images[-1] += 5
    with pytest.raises(ValueError, match=f"takes its patches from other pixels of image {count - 1} than of the first"):
        explain(model, images, "rollout")


def test_a_model_that_clips_pixels_sees_the_same_ones():
    model = invented(run=lambda model, images: model.read(model.through(model.embed(images.clamp(-1, 1)))))
    images = IMAGES.clone()
    images[1, :, 2] = 9
    assert explain(model, images, "rollout").shape == (3, 3, 5)


def test_weights_alone_do_not_depend_on_which_pixels_a_patch_has():
    images = SQUARE.clone()
    images[4] = brighter(images[4])
    assert len(capture_attention(of_square(shifted), images)) == 3


def test_images_that_torch_keeps_with_the_other_sign_are_read():
    negative = torch.complex(SQUARE, -SQUARE).conj().imag
    assert negative.is_neg()
    model = of_square(lambda images: images)
    assert torch.equal(explain(model, negative, "rollout"), explain(model, SQUARE, "rollout"))


def test_an_image_that_is_only_brighter_is_read():
    images = SQUARE.clone()
    images[4] = brighter(images[4])
    assert explain(of_square(lambda images: images), images, "rollout").shape == (6, 3, 3)
