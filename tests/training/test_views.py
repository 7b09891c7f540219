"""Test-time augmentation: which views, how they weigh, and what their mean is worth."""

import pytest
import torch
from torch import Tensor

from vit.training.views import classify_views, views_of

IMAGE = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)[None, None]


def first_pixel_and_its_square(images: Tensor) -> Tensor:
    """Two logits that tell which pixel was where: (B, C, H, W) -> (B, 2)."""
    corner = images[:, 0, 0, 0].float()
    return torch.stack([corner, corner.square()], dim=1)


def test_the_six_views_by_hand():
    assert [view[0, 0].tolist() for view in views_of(IMAGE)] == [
        [[1, 2, 3], [4, 5, 6]],
        [[3, 2, 1], [6, 5, 4]],
        [[5, 4, 5], [2, 1, 2]],  # down and right: the borders repeat what lies next to them
        [[5, 4, 5], [2, 1, 2]],
        [[5, 6, 5], [2, 3, 2]],  # up and left
        [[5, 6, 5], [2, 3, 2]],
    ]


def test_shifted_views_are_mirrored_after_they_are_shifted():
    views = list(views_of(torch.rand(2, 3, 5, 7)))
    for view, mirrored in zip(views[::2], views[1::2], strict=True):
        assert torch.equal(mirrored, view.flip(-1))


def test_inside_the_border_a_shift_moves_every_pixel_by_one():
    images = torch.rand(2, 3, 5, 7)
    _, _, down_right, _, up_left, _ = views_of(images)
    assert torch.equal(down_right[..., 1:, 1:], images[..., :-1, :-1])
    assert torch.equal(up_left[..., :-1, :-1], images[..., 1:, 1:])


def test_bytes_stay_bytes():
    assert {view.dtype for view in views_of(IMAGE)} == {torch.uint8}


@pytest.mark.parametrize(
    ("views", "corner", "square"),
    [
        ("none", 1, 1),
        ("flip", (1 + 3) / 2, (1 + 9) / 2),
        ("six", (1 + 3) / 4 + 4 * 5 / 8, (1 + 9) / 4 + 4 * 25 / 8),
    ],
)
def test_the_mean_of_the_logits_by_hand(views, corner, square):
    plain, mean = classify_views(first_pixel_and_its_square, IMAGE, views)
    assert plain.tolist() == [[1, 1]]
    assert mean.tolist() == [[corner, square]]


def test_the_unshifted_pair_weighs_a_half_and_each_shifted_view_an_eighth():
    number = iter(range(6))
    _, weights = classify_views(lambda images: torch.eye(6)[[next(number)]], IMAGE, "six")
    assert weights.tolist() == [[1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8]]


def test_an_image_and_its_mirror_image_get_the_same_mean_from_any_model():
    images, matrix = torch.rand(3, 2, 5, 7), torch.randn(70, 4)
    means = [classify_views(lambda x: (x.flatten(1) @ matrix).sin(), x, "flip")[1] for x in (images, images.flip(-1))]
    torch.testing.assert_close(means[1], means[0])


@pytest.mark.parametrize(("views", "count"), [("none", 1), ("flip", 2), ("six", 6)])
def test_the_model_is_asked_once_per_view_with_the_batch_as_large_as_it_was(views, count):
    seen = []
    classify_views(lambda images: seen.append(images.shape) or torch.zeros(3, 2), torch.rand(3, 1, 4, 4), views)
    assert seen == [(3, 1, 4, 4)] * count


def test_the_mean_is_taken_in_float32_though_the_model_answers_in_bfloat16():
    values = iter([1.0, 1.0078125])  # neighbours in bfloat16, so that their mean is none
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, mean = classify_views(lambda _: torch.tensor([[next(values)]], dtype=torch.bfloat16), IMAGE, "flip")
    assert mean.tolist() == [[1.00390625]]
