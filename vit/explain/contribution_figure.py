"""A figure of the contributions to one logit: its largest terms, its heads, its patches, and the logit lens.

Letters in the einops patterns: l layers, h heads, m tokens, c channels, y x rows and columns of pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from einops import rearrange, reduce, repeat
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.explain.decomposition import Contributions
from vit.explain.heatmap import overlay
from vit.support.class_names import name_classes
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import BLUE, ORANGE, SERIES, letters_on, plain_text, plot_style

LARGEST = 12  # terms that have a bar of their own
CLASSES = 5  # lines of the logit lens
MOST_WRITTEN = 200  # heads whose numbers are written into the grid


@plain_text
@plot_style
def draw_contributions(
    image: Tensor,
    found: Contributions,
    lens: Tensor,
    path: str | Path,
    *,
    index: int = 0,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Draw the contributions to the logit of one image, and its logit lens.

    Args:
        image: The image for display (see ``displayable``), (C, H, W), float in [0, 1] or uint8.
        found: What ``contributions`` returned.
        lens: What ``logit_lens`` returned for the same images, (B, layers + 1, classes).
        path: The PNG file.
        index: Number of the image in the batch.
        class_names: Names of the classes, in the order of the logits; None numbers them.
        title: Title of the figure, such as the question.
    """
    names = name_classes(class_names, lens.shape[-1])
    with drawable([title, *names]) as (shown_title, *shown_names):
        figure = Figure(figsize=(13, 7))
        figure.suptitle(shown_title)
        grid = figure.add_gridspec(2, 8)
        _draw_terms(figure.add_subplot(grid[0, :4]), found.terms(index), found.logits[index].item())
        _draw_heads(figure.add_subplot(grid[0, 4:]), found.heads[index])
        patches = found.patches[index]
        _draw_picture(figure.add_subplot(grid[1, :2]), image, "What the model sees")
        for place, sign, text in ((slice(2, 4), 1, "for the class"), (slice(4, 6), -1, "against the class")):
            _draw_patches(figure.add_subplot(grid[1, place]), image, patches, found.cells, sign, text)
        _draw_lens(figure.add_subplot(grid[1, 6:]), lens[index], shown_names)
        save_figure(figure, path)


def _draw_terms(axes: Axes, terms: list[tuple[str, float]], logit: float) -> None:
    largest, others = terms[:LARGEST], terms[LARGEST:]
    if others:
        largest = [*largest, (f"{len(others)} others", sum(value for _, value in others))]
    values = [value for _, value in largest]
    bars = axes.barh(range(len(values)), values, color=[BLUE if value >= 0 else ORANGE for value in values])
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(values)), [name for name, _ in largest], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(axis="y", visible=False)
    axes.set(title=f"The largest terms; all terms add up to {logit:.2f}", xlabel="logit")


def _draw_heads(axes: Axes, heads: Tensor) -> None:
    values = reduce(heads.float().cpu(), "l h m -> l h", "sum")
    most = values.abs().max().item() or 1.0
    drawn = axes.imshow(values.numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    if values.numel() <= MOST_WRITTEN:
        for (layer, head), value in zip(torch.ones_like(values).nonzero().tolist(), values.flatten(), strict=True):
            color = letters_on(drawn.to_rgba(float(value))[:3])
            axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    axes.set(title="What each head adds", xlabel="head", ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False)
    axes.figure.colorbar(drawn, ax=axes, label="logit")


def _draw_patches(axes: Axes, image: Tensor, patches: Tensor, cells: Tensor, sign: int, text: str) -> None:
    # With one scale, the colours of both pictures can be compared.
    both = torch.stack([patches, -patches]).clamp(min=0)
    pictures = overlay(repeat(image, "c y x -> b c y x", b=2), both, cells=cells, scale="common")
    carried = (sign * patches).clamp(min=0).sum().item() * sign
    _draw_picture(axes, pictures[0 if sign > 0 else 1], f"Patches {text}: {carried:+.2f}")


def _draw_picture(axes: Axes, picture: Tensor, title: str) -> None:
    white = 1 if picture.is_floating_point() else 255
    axes.imshow(rearrange(picture.cpu(), "c y x -> y x c").numpy(), cmap="gray", vmin=0, vmax=white)
    axes.set(title=title, xticks=[], yticks=[])
    axes.grid(visible=False)


def _draw_lens(axes: Axes, lens: Tensor, names: Sequence[str]) -> None:
    probabilities = lens.float().cpu().softmax(dim=-1)
    highest = probabilities[-1].argsort(descending=True)[:CLASSES].tolist()
    for color, k in zip(SERIES, highest, strict=False):
        axes.plot(range(len(lens)), (100 * probabilities[:, k]).tolist(), marker="o", ms=3, color=color, label=names[k])
    axes.set(title="Logit lens", xlabel="layers passed", ylabel="probability, %", ylim=(-2, 102))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8)
