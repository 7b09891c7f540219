"""Normalisation of pixels outside of a training.

Letter in the einops patterns: c channels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor


def normalise(pixels: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Normalise uint8 images as a model expects them: (B, C, H, W) -> (B, C, H, W).

    ``(pixels / 255 - mean) / std`` for each channel.

    >>> pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    >>> normalise(pixels, {"mean": [0.5], "std": [0.25]}).squeeze()
    tensor([-2.0000, -1.2000,  2.0000])

    Args:
        pixels: The images.
        settings: ``mean`` and ``std``, a number for each channel, as in the ``pretrained_cfg`` of a model.
    """
    mean, std = (
        rearrange(torch.tensor(settings[name], device=pixels.device), "c -> c 1 1") for name in ("mean", "std")
    )
    return (pixels / 255 - mean) / std
