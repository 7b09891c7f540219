"""The picture of images beside the views of them that an objective compares.

Letters in the einops patterns: b images, v views, c channels, h w rows and columns of pixels.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from lightning import LightningModule
from torch import Tensor

from vit.data.module import ImageSet
from vit.data.seeding import seeded
from vit.objectives.neighbours import spread_out
from vit.support.captioned import draw_captioned
from vit.support.plotting import BLUE, GREY

SHOWN, WHITE = 6, 255


def draw_views(learner: LightningModule, image_set: ImageSet, split: str, path: Path) -> None:
    """Draw images of a split, each before the views that a ``ViewLearner`` cuts out of it."""
    images, _ = image_set.decode(spread_out(len(image_set.labels), SHOWN))
    with seeded(0):
        views = learner.cut(images)
    shown = torch.stack([images, *(framed(view, images.shape[-2:]) for view in views)], dim=1)
    flat = rearrange(shown, "b v c h w -> (b v) c h w")
    names = ["large"] * learner.views.global_views + ["small"] * learner.views.local_views
    captions, colors = ["image", *names] * len(images), [BLUE, *[GREY] * len(names)] * len(images)
    title = f"{split.capitalize()} images, each before views of it"
    draw_captioned([*flat], captions, colors, title, path, across=shown.shape[1], width=1.1, fontsize=8)


def framed(view: Tensor, size: tuple[int, int]) -> Tensor:
    """Return views with white around them, at the size of the images: (B, C, h, w) -> (B, C, H, W)."""
    rows, columns = (whole - part for whole, part in zip(size, view.shape[-2:], strict=True))
    return F.pad(view, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), value=WHITE)
