"""The picture of images beside the images with the nearest features.

Letters in the einops patterns: n images, m their neighbours, d channels of a feature.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor

from vit.data.module import ImageSet
from vit.support.captioned import draw_captioned
from vit.support.plotting import BLUE, GREY

ASKED, NEAREST = 8, 7


def nearest_images(features: Tensor, asked: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the nearest images to each asked image, and their cosines: (N, D), numbers (n,) -> twice (n, count)."""
    directions = F.normalize(features.float(), dim=1)
    cosines = einsum(directions[asked], directions, "n d, m d -> n m")
    cosines[torch.arange(len(asked)), asked] = -torch.inf
    values, numbers = cosines.topk(min(count, len(features) - 1), dim=1)
    return numbers, values


def spread_out(count: int, most: int) -> Tensor:
    """Return the numbers of at most ``most`` of ``count`` images, evenly spaced, as they may be sorted by class.

    >>> spread_out(10, 4)
    tensor([0, 3, 6, 9])
    """
    return torch.linspace(0, count - 1, min(most, count)).long()


def draw_neighbours(rows: dict[str, Tensor], image_set: ImageSet, split: str, path: Path) -> None:
    """Draw images of a split, each before the images of the nearest features.

    Args:
        rows: "features" of images, and their "index" in the split, as ``FeatureEvaluation`` has them.
        image_set: The images of the split.
        split: Its name.
        path: File of the picture.
    """
    count = len(rows["index"])
    if count < 2:
        raise ValueError(f"{count} images have no neighbours to draw")
    asked = spread_out(count, ASKED)
    numbers, cosines = nearest_images(rows["features"], asked, NEAREST)
    shown = torch.cat([asked[:, None], numbers], dim=1)
    images, _ = image_set.decode(rows["index"][shown.flatten()])
    captions = [text for row in cosines.tolist() for text in ("image", *(f"{cosine:.2f}" for cosine in row))]
    colors = [BLUE, *[GREY] * numbers.shape[1]] * len(asked)
    title = f"{split.capitalize()} images, each before those of the nearest features (cosine)"
    draw_captioned([*images], captions, colors, title, path, across=shown.shape[1], width=1.0, fontsize=8)
