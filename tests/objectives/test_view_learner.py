"""Views of images as loaders give them."""

import torch

from vit.objectives import SIGReg


def test_floats_a_little_outside_of_0_and_1_are_black_and_white():
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
    learner = SIGReg(**sizes, global_views=2, local_views=0, distort=False)
    images = torch.full((2, 1, 8, 8), -0.02)
    images[1] = 1.02
    for view in learner.cut(images):
        assert view[0].unique().tolist() == [0]
        assert view[1].unique().tolist() == [255]
