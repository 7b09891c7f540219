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

    >>> pixels = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)
    >>> normalise(pixels, {"mean": [0.5], "std": [0.25]}).squeeze()
    tensor([-2.0000, -1.2000,  2.0000])

    Args:
        pixels: The images.
        settings: ``mean`` and ``std``, a number for each channel, as in the ``pretrained_cfg`` of a model.

    Raises:
        ValueError: If the images are not uint8, or have another number of channels.
    """
    if pixels.dtype != torch.uint8:
        raise ValueError(f"pixels are {pixels.dtype}: give uint8, from 0 to 255")
    if pixels.shape[-3] != len(settings["mean"]):
        raise ValueError(
            f"images of {pixels.shape[-3]} channels are given, and the model takes {len(settings['mean'])}: convert "
            f"the images, or load the model with in_channels={pixels.shape[-3]}"
        )
    mean, std = (
        rearrange(torch.tensor(settings[name], device=pixels.device), "c -> c 1 1") for name in ("mean", "std")
    )
    return (pixels / 255 - mean) / std
