"""Palettes and the numbers of colours, by hand and against scikit-learn."""

import pytest
import torch
from sklearn.cluster import KMeans
from torch.testing import assert_close

from vit.objectives.complete.palette import dequantise, learn_palette, quantise, resize_images


def test_the_palette_is_that_of_kmeans_from_dark_to_bright():
    images = torch.rand(7, 3, 5, 4) * 255
    palette = learn_palette(images, 6)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3)
    assert (palette.mean(dim=1).diff() >= 0).all()
    found = KMeans(6, n_init=20, random_state=3).fit(pixels.numpy())
    inertia = (torch.cdist(pixels, palette).min(dim=1).values ** 2).sum().item()
    assert inertia < 1.05 * found.inertia_


def test_the_same_images_have_the_same_palette_in_any_order():
    levels = torch.arange(17).mul(255 / 16).round()
    images = levels[(torch.rand(61, 1, 8, 8) ** 2 * 17).long()]
    palette = learn_palette(images, 8)
    assert torch.equal(palette, learn_palette(images.flip(0), 8))
    assert_close(palette, learn_palette(images.repeat(3, 1, 1, 1), 8), rtol=0, atol=1e-9)


def test_each_pixel_gets_its_nearest_colour():
    images, palette = torch.rand(3, 3, 5, 7) * 255, torch.rand(11, 3) * 255
    numbers = quantise(images, palette)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3)
    assert torch.equal(numbers.flatten(), torch.cdist(pixels, palette).argmin(dim=1))


def test_colours_of_a_palette_come_back():
    palette = torch.tensor([[0.0, 10, 20], [200, 100, 50], [255, 255, 255]])
    numbers = torch.randint(0, 3, (2, 4, 5))
    images = dequantise(numbers, palette, 3)
    assert images.dtype == torch.uint8
    assert torch.equal(quantise(images.float(), palette), numbers)


def test_patches_are_entries_too():
    images = torch.rand(5, 3, 4, 6) * 255
    palette = learn_palette(images, 7, patch_size=2)
    assert palette.shape == (7, 12)
    numbers = quantise(images, palette)
    assert numbers.shape == (5, 2, 3)
    rebuilt = dequantise(numbers, palette, 3)
    assert rebuilt.shape == images.shape
    patch = images[1, :, 2:4, 4:6].flatten()
    nearest = (palette - patch).norm(dim=1).argmin()
    assert numbers[1, 1, 2] == nearest
    assert_close(rebuilt[1, :, 2:4, 4:6].float(), palette[nearest].reshape(3, 2, 2).round())


def test_images_are_averaged_when_they_shrink():
    images = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    images[..., :2] = 200
    small = resize_images(images, (2, 2))
    assert_close(small, resize_images(images / 255, (2, 2)))
    assert small[0, 0, 0, 0] > 150 > 50 > small[0, 0, 0, 1]
    assert_close(small.mean().item(), 100.0)
    assert_close(resize_images(images, (4, 4)), images.float())


@pytest.mark.parametrize(
    ("count", "message"),
    [(3, r"palette_size \(3\) is more than the 2 colours of the images: take fewer"), (0, r"palette_size \(0\)")],
)
def test_an_impossible_palette_is_refused(count, message):
    images = torch.tensor([0.0, 0.0, 255.0, 0.0]).reshape(1, 1, 2, 2)
    with pytest.raises(ValueError, match=message):
        learn_palette(images, count)
