"""Photographs as taken, at a size to look at."""

import pytest
import torch
from PIL import Image

import vit
from vit.explain.photograph import locate, read_shown


@pytest.fixture
def model():
    model = vit.VisionTransformer(image_size=(14, 22), patch_size=2, embed_dim=8, depth=1, num_heads=2)
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 0.125], "crop_ratio": 0.8}
    return model


@pytest.fixture
def picture():
    return Image.fromarray(torch.randint(0, 256, (61, 97, 3), dtype=torch.uint8).numpy())


@pytest.mark.parametrize(("size", "shown"), [(200, (126, 200)), (210, (132, 210)), (970, (610, 970))])
def test_photographs_are_shown_at_the_size_asked_for(model, picture, size, shown):
    assert read_shown(locate(picture, model), size=size).shape == (1, *shown)


def test_pixels_of_small_photographs_are_repeated(model):
    picture = Image.new("L", (2, 1))
    picture.putpixel((1, 0), 255)
    shown = read_shown(locate(picture, model), size=200, in_channels=3)
    assert shown[:, 0, 99].tolist() == [0, 0, 0]
    assert shown[:, 0, 100].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("size", "words"),
    [(199, r"size \(199\) must be from 200 to 16000"), (10**6, "from 200 to 16000"), (-1, "positive")],
)
def test_sizes_that_nobody_can_see_are_refused(model, picture, size, words):
    with pytest.raises(ValueError, match=words):
        read_shown(locate(picture, model), size=size)
