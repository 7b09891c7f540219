"""Draw docs/images/kinds.png: heads of each kind in the packaged model, on one photograph.

python benchmarks/kinds_picture.py

Letters in the einops patterns: h w rows and columns of patches.
"""

from pathlib import Path
from typing import get_args

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

import vit
from vit.analysis import describe_heads
from vit.analysis.head_table import Head, Kind
from vit.commands.photographs import find_images, read_images
from vit.explain import capture_attention, overlay
from vit.explain.panels import Bar, Look, Panel, Picture, draw_panels

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/kinds.png"
PHOTOGRAPH, QUERIES = "horse_0000", ((4, 12), (11, 6))  # rows and columns of two patches
LARGER = 6  # times as many pixels a side
FRAME = (1.0, 0.0)  # white outside, black inside: seen on every colour
LOOK = Look(side=1.9, letters=11, column=1.9)


def strength(head: Head) -> float:
    """Return how clearly a head is of its kind: the measure that the kind is judged by, larger is clearer."""
    measures = {
        "sink": head.sink_share,
        "positional": max(head.positional, head.offset_score),
        "local": -head.relative_distance,
        "content": head.follows,
        "mixed": -abs(head.follows),
    }
    return measures[head.kind]


def framed(pixels: Tensor, row: int, column: int, rows: int) -> Tensor:
    """Return an image (C, H, W) with a frame around a patch of a square grid."""
    side = pixels.shape[-1] // rows
    pixels = pixels.clone()
    patch = pixels[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
    for inset, brightness in enumerate(FRAME):
        lines = [inset, side - 1 - inset]
        patch[:, lines, inset : side - inset] = patch[:, inset : side - inset, lines] = brightness
    return pixels


def draw() -> Picture:
    """Draw where two patches attend, in the clearest head of each kind that the model has."""
    model = vit.load("cifar10")
    files = find_images([ROOT / "notebooks/cifar10"])
    pixels, images = read_images(files, model)
    index = [file.stem for file in files].index(PHOTOGRAPH)
    table = describe_heads(model, images)
    attentions = capture_attention(model, images[index : index + 1])
    large = F.interpolate(pixels[index : index + 1].float() / 255, scale_factor=LARGER, mode="bicubic").clamp(0, 1)
    (side, _), first = model.patch_embed.grid_size, model.num_prefix_tokens
    kinds = {kind: [head for head in table.heads if head.kind == kind] for kind in get_args(Kind)}
    rows = []
    for row, column in QUERIES:
        panels = []
        for kind, heads in kinds.items():
            if heads:
                clearest = max(heads, key=strength)
                attn = attentions[clearest.layer][0, clearest.head, first + row * side + column, first:]
                shown = overlay(large, rearrange(attn, "(h w) -> 1 h w", h=side))[0]
                title = "" if rows else f"{kind}\nlayer {clearest.layer}, head {clearest.head}"
                panels.append(Panel(framed(shown, row, column, side), "", title))
        rows.append(panels)
    return draw_panels(
        rows,
        LOOK,
        title="Where the framed patch attends, by kind of head",
        bar=Bar("attention of a patch, as a share of the largest", ("0", "0.5", "1")),
        description="The attention of two patches in one head of each kind",
    )


if __name__ == "__main__":
    print(draw().save(PICTURE))
