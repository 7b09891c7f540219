"""Pixels as a model expects them."""

import pytest
import torch

from vit.data.normalise import normalise

SETTINGS = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 0.2]}


def test_each_channel_has_its_own_mean_and_deviation():
    pixels = torch.full((2, 3, 4, 5), 51, dtype=torch.uint8)  # 0.2
    found = normalise(pixels, SETTINGS)
    torch.testing.assert_close(found[1, :, 3, 4], torch.tensor([0.2, 0.0, -0.5]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (torch.zeros(1, 3, 2, 2), "pixels are torch.float32: give uint8, from 0 to 255"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.uint8), "images of 1 channels are given, and the model takes 3"),
    ],
)
def test_shares_of_white_and_other_channels_are_refused(pixels, message):
    with pytest.raises(ValueError, match=message):
        normalise(pixels, SETTINGS)
