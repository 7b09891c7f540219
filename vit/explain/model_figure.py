"""Draws one picture of a Vision Transformer, from its own numbers: image, patches, tokens, block, classes, attention.

Letters in the einops patterns: c channels, h w rows and columns of patches, p q rows and columns of pixels of a patch.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Corners
from torch import Tensor

from vit.capture.attention import capture_attention
from vit.explain.heatmap import overlay
from vit.model.vision_transformer import VisionTransformer
from vit.support.class_names import name_classes
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import BLUE, GREY, ORANGE, plain_text

BEST = 4  # classes with a bar
LETTERS = 13  # points
GAP = 2  # rows between the learned tokens and those of the patches
# The steps of a branch around attention or MLP, by the model's norm, and the heights of all steps from the top down.
BRANCHES = {"pre": ("norm", "{}", "+"), "post": ("{}", "+", "norm"), "none": ("{}", "+")}
HEIGHTS = (0.83, 0.69, 0.54, 0.39, 0.25, 0.10)
CIRCLE = {"boxstyle": "circle,pad=0.1", "fc": "white", "ec": GREY}
SKIP = {"arrowstyle": "->", "color": GREY, "lw": 1.2, "connectionstyle": "angle,angleA=90,angleB=0,rad=6"}
# What the linear layer of the logits reads, by the model's pool.
READ = {
    "cls": "the class token",
    "mean": "the mean of all patches",
    "cls+mean": "class token and mean",
    "cls+dist": "two learned tokens",
    "map": "tokens pooled by attention",
}
EXTREME = 0.98  # quantile of the absolute values; from there on, they have the deepest colour


@torch.no_grad()
@plain_text
def draw_model(
    model: VisionTransformer,
    image: Tensor,
    pixels: Tensor,
    path: str | Path,
    class_names: Sequence[str] | None = None,
) -> None:
    """Draw what a model makes of one image, step by step.

    >>> import vit  # doctest: +SKIP
    >>> draw_model(vit.load("cifar10"), image, pixels, "model.png")  # doctest: +SKIP

    Args:
        model: A model in evaluation mode, whose patches lie side by side.
        image: The image as the model takes it, (C, H, W).
        pixels: The same image for display (see ``displayable``), (C, H, W).
        path: The PNG file.
        class_names: Names of the classes, in the order of the logits; None numbers them.

    Raises:
        ValueError: If the patches of the model overlap, or it has no head.
    """
    embed = model.patch_embed
    if embed.patch_stride != embed.patch_size:
        raise ValueError(
            f"patches of {embed.patch_size} every {embed.patch_stride} pixels overlap, and the picture shows them side "
            "by side: give vit.load(..., patch_stride=4), or another model"
        )
    if not model.num_classes:
        raise ValueError(
            "the model has no head (num_classes=0), and the picture ends in its classes: give a classifier"
        )
    attentions = capture_attention(model, image[None])
    with drawable(name_classes(class_names, model.num_classes)) as names:
        figure = Figure(figsize=(9.2, 7.0), layout="constrained")
        figure.suptitle("How a Vision Transformer classifies an image", fontsize=LETTERS + 3)
        figure.get_layout_engine().set(w_pad=0.14, h_pad=0.1)
        upper, lower = figure.subfigures(2, 1)
        photo, patches, linear, positions = upper.subplots(1, 4, width_ratios=(1, 1.05, 0.9, 0.9))
        seen, block, classes = lower.subplots(1, 3, width_ratios=(1, 0.8, 1))
        _show(photo, pixels, f"an image of\n{pixels.shape[1]} x {pixels.shape[2]} pixels")
        p, q = embed.patch_size
        title = f"{embed.num_patches} patches of\n{p} x {q} pixels"
        _show(patches, _spread(pixels, embed.patch_size), title)
        _draw_tokens(
            linear, embed(image[None])[0], "a matrix turns each\npatch into a token (red\nabove 0, blue below)"
        )
        _draw_tokens(positions, model.embed(image[None])[0], _says(model), model.num_prefix_tokens)
        _draw_block(block, len(model.blocks), model.config)
        # After the blocks, attention with one query may pool the tokens.
        *_, last = (attn[0] for attn in attentions if attn.shape[-2] > 1)
        reader = "class token attends" if model.config["class_token"] else "patches attend"
        shares = _shares_of_patches(model, last)
        _show(seen, overlay(pixels[None], shares)[0], f"where the {reader}\n(last block, {_count(last)})")
        equal = 100 / last.shape[-1]
        _write_below(seen, f"brightest patch: {100 * shares.max():.1f} %\n(equal shares: {equal:.1f} %)")
        _draw_classes(classes, attentions.logits[0], names, f"a norm and a linear layer\nread {READ[model.pool]}")
        _draw_arrows(figure, [photo, patches, linear, positions], block, classes)
        _tie(block, seen, model.config["norm"])
        save_figure(figure, path, dpi=110)


def _count(attn: Tensor) -> str:
    """Return how many heads an attention (H, N, N) has, in words."""
    return f"mean of {len(attn)} heads" if len(attn) > 1 else "its one head"


def _says(model: VisionTransformer) -> str:
    alone = "class token" if model.config["class_token"] else "register"
    prefix = {0: "", 1: f", and\n{alone} on top"}
    added = "positions" if model.config["pos_embed"] in ("learned", "sincos") else "no positions"
    return f"{added} added" + prefix.get(
        model.num_prefix_tokens, f", and\n{model.num_prefix_tokens} learned tokens on top"
    )


def _show(axes: Axes, picture: Tensor, title: str) -> None:
    axes.imshow(rearrange(picture.cpu(), "c y x -> y x c").numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=LETTERS)
    axes.set_axis_off()


def _write_below(axes: Axes, text: str) -> None:
    axes.text(0.5, -0.03, text, transform=axes.transAxes, ha="center", va="top", fontsize=LETTERS)


def _spread(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Move the patches of an image apart: (C, H, W) -> (C, H', W')."""
    p, q = size
    white = 255 if pixels.dtype == torch.uint8 else 1.0
    patches = rearrange(pixels, "c (h p) (w q) -> c h w p q", p=p, q=q)
    return rearrange(F.pad(patches, (0, 1, 0, 1), value=white), "c h w p q -> c (h p) (w q)")


def _draw_tokens(axes: Axes, tokens: Tensor, title: str, prefix: int = 0) -> None:
    deepest = tokens.abs().quantile(EXTREME).item()
    white = tokens.new_full((GAP if prefix else 0, tokens.shape[1]), torch.nan)
    rows = torch.cat([tokens[:prefix], white, tokens[prefix:]])
    axes.imshow(rows.cpu().numpy(), cmap="RdBu_r", vmin=-deepest, vmax=deepest, aspect="auto", interpolation="nearest")
    axes.set_title(title, fontsize=LETTERS)
    axes.set_xlabel(f"{tokens.shape[1]} channels", fontsize=LETTERS)
    axes.set_ylabel(f"{len(tokens)} tokens", fontsize=LETTERS)
    axes.set(xticks=[], yticks=[])


def _draw_block(axes: Axes, depth: int, config: Mapping[str, Any]) -> None:
    axes.set(xlim=(0, 1), ylim=(-0.05, 1.07))
    axes.set_axis_off()
    axes.set_title(f"{depth} blocks of\nthese steps", fontsize=LETTERS)
    axes.annotate("", (0.35, -0.05), (0.35, 1.05), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.5})
    for text, height in (("tokens in", 0.99), ("tokens out", -0.04)):
        axes.text(0.4, height, text, fontsize=LETTERS - 1, color=GREY)
    branch = [step for step in BRANCHES[config["norm"]] if step != "+" or config["residual"]]
    steps = [(step.format(name), place) for name in ("attention", "MLP") for place, step in enumerate(branch)]
    for number, (step, place) in enumerate(steps):
        height = HEIGHTS[number]
        if step == "+":
            above = HEIGHTS[number - place] + 0.11
            axes.text(0.35, height + 0.04, step, ha="center", va="center", fontsize=LETTERS + 3, bbox=CIRCLE, zorder=3)
            # The skip connection goes around the steps of the branch.
            axes.annotate("", (0.42, height + 0.04), (0.92, above), arrowprops=SKIP)
            axes.plot([0.35, 0.92], [above] * 2, color=GREY, lw=1.2)
        else:
            color = BLUE if step in ("attention", "MLP") else GREY
            box = FancyBboxPatch((0.06, height), 0.58, 0.09, boxstyle="round,pad=0.01", fc="white", ec=color, zorder=3)
            axes.add_patch(box)
            axes.text(0.35, height + 0.045, step, ha="center", va="center", fontsize=LETTERS, color=color, zorder=4)


def _tie(block: Axes, seen: Axes, norm: str) -> None:
    """Tie the attention of a block to the picture of it, by a line without an arrow: nothing flows from there."""
    height = HEIGHTS[BRANCHES[norm].index("{}")] + 0.045
    ends = {"xyA": (0.05, height), "coordsA": block.transData, "xyB": (1.02, height), "coordsB": seen.transAxes}
    block.get_figure(root=True).add_artist(ConnectionPatch(**ends, color=BLUE, lw=1.2, linestyle=":"))


def _shares_of_patches(model: VisionTransformer, attn: Tensor) -> Tensor:
    """Return the attention (H, N, N) of the class token to patches, (1, h, w); without one, the mean over patches."""
    mixed, first = reduce(attn, "head n m -> n m", "mean"), model.num_prefix_tokens
    row = mixed[0] if model.config["class_token"] else reduce(mixed[first:], "n m -> m", "mean")
    return rearrange(row[first:], "(h w) -> 1 h w", h=model.patch_embed.grid_size[0])


def _draw_arrows(figure: Figure, upper: Sequence[Axes], block: Axes, classes: Axes) -> None:
    """Lead from each panel of the upper row to the next, to the top of the block, and from its end to the classes."""
    figure.draw_without_rendering()  # places the panels
    to_shares = figure.transFigure.inverted().transform_bbox
    for left, right in pairwise(upper):
        _lead(figure, left, right, to_shares(right.bbox).y1 - 0.03)  # beside no label
    tokens_out = block.transData.transform((0, -0.02))
    _lead(figure, block, classes, figure.transFigure.inverted().transform(tokens_out)[1])
    last, first, title = (
        to_shares(box) for box in (upper[-1].get_tightbbox(), block.bbox, block.title.get_window_extent())
    )
    right, left, height = (last.x0 + last.x1) / 2, first.x0 + 0.35 * first.width, (last.y0 + title.y1) / 2
    _draw_arrow(figure, [(right, last.y0), (right, height), (left, height), (left, title.y1)])


def _lead(figure: Figure, left: Axes, right: Axes, height: float) -> None:
    """Draw an arrow from one panel to another, at a height from 0 to 1."""
    to_shares = figure.transFigure.inverted().transform_bbox
    start, end = (to_shares(axes.get_tightbbox()) for axes in (left, right))
    _draw_arrow(figure, [(start.x1 + 0.004, height), (end.x0 - 0.004, height)])


def _draw_arrow(figure: Figure, corners: Sequence[tuple[float, float]]) -> None:
    look = {"transform": figure.transFigure, "color": BLUE, "lw": 1.5}
    figure.add_artist(FancyArrowPatch(path=Corners(corners), arrowstyle="->", mutation_scale=11, fill=False, **look))


def _draw_classes(axes: Axes, logits: Tensor, names: Sequence[str], title: str) -> None:
    best = logits.softmax(dim=0).topk(min(BEST, len(logits)))
    shares, chosen = (100 * best.values).tolist(), [names[k] for k in best.indices.tolist()]
    if others := len(logits) - len(chosen):
        shares, chosen = [*shares, 100 - sum(shares)], [*chosen, f"{others} other{'s' * (others > 1)}"]
    bars = axes.barh(range(len(chosen)), shares, color=[ORANGE] + [GREY] * (len(chosen) - 1))
    axes.bar_label(bars, fmt="%.0f %%", padding=3, fontsize=LETTERS)
    axes.set_yticks(range(len(chosen)), chosen, fontsize=LETTERS)
    axes.invert_yaxis()
    axes.set(xlim=(0, 130), xticks=[])
    axes.set_title(title, fontsize=LETTERS)
    for side in axes.spines.values():
        side.set_visible(False)
