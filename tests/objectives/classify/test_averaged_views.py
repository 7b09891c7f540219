"""Test-time augmentation: which views, how they weigh, and what their mean is worth."""

import pytest
import torch
from torch import Tensor

from vit.objectives.classify.averaged_views import classify_views, views_of

IMAGE = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.uint8)[None, None]


def test_the_six_views_by_hand():
    views = list(views_of(IMAGE))
    assert [view[0, 0].tolist() for view in views] == [
        [[1, 2, 3, 4], [5, 6, 7, 8]],
        [[4, 3, 2, 1], [8, 7, 6, 5]],
        [[6, 5, 6, 7], [2, 1, 2, 3]],  # down and right: the borders repeat what lies next to them
        [[7, 6, 5, 6], [3, 2, 1, 2]],
        [[6, 7, 8, 7], [2, 3, 4, 3]],  # up and left
        [[7, 8, 7, 6], [3, 4, 3, 2]],
    ]
    assert {view.dtype for view in views} == {torch.uint8}


@pytest.mark.parametrize(
    ("views", "count", "corner", "square"),
    [
        ("none", 1, 1, 1),
        ("flip", 2, (1 + 4) / 2, (1 + 16) / 2),
        ("six", 6, (1 + 4) / 4 + 2 * (6 + 7) / 8, (1 + 16) / 4 + 2 * (36 + 49) / 8),
    ],
)
def test_the_mean_of_the_logits_by_hand_with_a_call_for_each_view(views, count, corner, square):
    batches = []

    def first_pixel_and_its_square(images: Tensor) -> Tensor:
        batches.append(len(images))
        first = images[:, 0, 0, 0].float()
        return torch.stack([first, first.square()], dim=1)

    plain, mean = classify_views(first_pixel_and_its_square, IMAGE, views)
    assert plain.tolist() == [[1, 1]]
    assert mean.tolist() == [[corner, square]]
    assert batches == [1] * count


def test_the_mean_is_taken_in_float32_though_the_model_answers_in_bfloat16():
    values = iter([1.0, 1.0078125])  # neighbours in bfloat16, so that their mean is none
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, mean = classify_views(lambda _: torch.tensor([[next(values)]], dtype=torch.bfloat16), IMAGE, "flip")
    assert mean.tolist() == [[1.00390625]]
