"""The picture of images beside those of the nearest features."""

import pytest
import torch
from PIL import Image

from vit.data.module import ImageSet
from vit.objectives.neighbours import draw_neighbours, nearest_images


def test_the_nearest_other_images_come_first():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.2], [1.0, 1.0]])
    numbers, cosines = nearest_images(features, torch.tensor([0, 1]), 2)
    assert numbers.tolist() == [[2, 3], [3, 2]]
    assert cosines[0, 1].item() == pytest.approx(0.5**0.5)


def test_few_images_are_drawn_and_one_alone_is_refused(tmp_path):
    rows = {"index": torch.arange(3), "features": torch.randn(3, 4)}
    images = ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3).long())
    draw_neighbours(rows, images, "test", tmp_path / "neighbours.png")
    with Image.open(tmp_path / "neighbours.png") as picture:
        assert min(picture.size) > 200
    with pytest.raises(ValueError, match="1 images have no neighbours"):
        draw_neighbours({name: values[:1] for name, values in rows.items()}, images, "test", tmp_path / "one.png")
