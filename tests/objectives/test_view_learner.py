"""Views of images as loaders give them."""

import pytest
import torch

from vit.objectives import SIGReg

SIZES = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}


def test_floats_a_little_outside_of_0_and_1_are_black_and_white():
    learner = SIGReg(**SIZES, global_views=2, local_views=0, distort=False)
    images = torch.full((2, 1, 8, 8), -0.02)
    images[1] = 1.02
    for view in learner.cut(images):
        assert view[0].unique().tolist() == [0]
        assert view[1].unique().tolist() == [255]


def test_channels_that_are_no_colours_are_not_distorted():
    four = SIZES | {"in_channels": 4}
    with pytest.raises(ValueError, match="distort changes colours of images of 1 or 3 channels, and these have 4: set"):
        SIGReg(**four)
    learner = SIGReg(**four, distort=False)
    assert {view.shape[1] for view in learner.cut(torch.zeros(2, 4, 8, 8, dtype=torch.uint8))} == {4}
