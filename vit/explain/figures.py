"""Figures of maps: sheets of overlays, the heads of a model, removal curves, scores of methods.

Letters in the einops patterns: b batch, c channels, h w rows and columns of pixels, k heads, t steps.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from einops import reduce, repeat
from matplotlib.figure import Figure
from torch import Tensor

from vit.capture.anatomy import Anatomy
from vit.explain.evaluation.faithfulness import Curves
from vit.explain.evaluation.printed_table import Interval
from vit.explain.evaluation.scoring import Scores
from vit.explain.heatmap import overlay
from vit.explain.image_grid import Sheet
from vit.explain.largest_value import label_largest
from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS
from vit.explain.maps.rollout import readout_map
from vit.support.class_names import name_classes
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import BLUE, GREY, ORANGE, plain_text, plot_style
from vit.support.printable import printable

TEXT_WIDTH = 22  # letters of a line below an image
MEASURES = {
    "drop": "removal area (tokens)",
    "fill": "removal area (pixels)",
    "hits": "share of highest patches on the object",
}
PERCENTS_GONE = range(0, 100, 10)  # patches removed at each step of a curve
CURVES_ACROSS = 4  # panels in a row


@plain_text
def draw_maps(
    images: Tensor,
    maps: Mapping[str, Tensor],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    logits: Tensor | None = None,
    class_names: Sequence[str] | None = None,
    labels: Tensor | None = None,
    title: str = "",
    smooth: bool = False,
    across: int = 1,
    cells: Tensor | None = None,
) -> None:
    """Draw a sheet of images, each beside one overlay per map, with its largest value as a multiple of its mean below.

    Args:
        images: Images for display (see ``displayable``), (B, C, H, W).
        maps: Non-negative maps (B, rows, columns), by method name or any other title.
        path: The PNG file.
        names: Names to write below the images, such as file names.
        logits: Logits of the images, (B, classes). If given, each image shows its predicted class and probability.
        class_names: Names of the classes, in the order of the logits; None numbers them.
        labels: The true classes, (B,). If given, wrong predictions are orange.
        title: Title of the sheet.
        smooth: Whether maps are interpolated. If so, the column titles say it.
        across: Number of images side by side.
        cells: The patch that each pixel belongs to, as in ``overlay``; None divides the images evenly.
    """
    captions = _captions(names or [""] * len(images), logits, class_names, labels)
    with drawable([text for text, _ in captions]) as texts:
        shown = [(text, color) for text, (_, color) in zip(texts, captions, strict=True)]
        _draw_sheet(images, maps, path, shown, title, smooth, across, cells)


def _draw_sheet(
    images: Tensor,
    maps: Mapping[str, Tensor],
    path: str | Path,
    captions: Sequence[tuple[str, str]],
    title: str,
    smooth: bool,
    across: int,
    cells: Tensor | None,
) -> None:
    size, width = images.shape[-2:], 1 + len(maps)
    titles = [_column_title(name, smooth) for name in maps]
    sheet = Sheet(
        size,
        rows=-(-len(images) // across),
        groups=[width] * across,
        title=title,
        lines_above=max(text.count("\n") + 1 for text in titles) if maps else 0,
        lines_below=max(text.count("\n") + 1 if text else int(bool(maps)) for text, _ in captions),
    )
    for group, (column, text) in product(range(across), enumerate(titles, start=1)):
        sheet.write_above(group * width + column, text)
    for index, (text, color) in enumerate(captions):
        row, group = divmod(index, across)
        sheet.show(images[index], row, group * width)
        sheet.write_below(row, group * width, text, color)
    for column, values in enumerate(maps.values(), start=1):
        grid = (1, 1) if smooth else values.shape[-2:]
        for index, picture in enumerate(overlay(images, values, cells=cells, smooth=smooth)):
            row, group = divmod(index, across)
            sheet.show(picture, row, group * width + column, grid, None if smooth else cells)
            sheet.write_below(row, group * width + column, label_largest(values[index]))
    sheet.save(path)


def draw_heads(image: Tensor, attentions: Sequence[Tensor], anatomy: Anatomy, path: str | Path) -> None:
    """Draw the attention of the read-out tokens, those that the logits read, for each layer and head.

    The image (C, H, W) is for display (see ``displayable``); its attentions, (1, H, N, N), are those of
    ``capture_attention``. Negative weights, from differential or talking-heads attention, are shown as zero.
    """
    layers = [attn.detach() for attn in attentions if attn.shape[-2] > 1]
    heads = max(attn.shape[1] for attn in layers)
    is_class_token = anatomy.num_prefix_tokens > 0 and float(anatomy.readout[0]) == 1
    title = f"Where {'the class token attends' if is_class_token else 'the tokens that are read attend'}"
    sheet = Sheet(image.shape[-2:], len(layers), [heads], title=title, left=0.6)
    for head in range(heads):
        sheet.write_above(head, f"head {head}")
    for layer, attn in enumerate(layers):
        sheet.write_left(layer, f"layer {layer}")
        maps = readout_map(anatomy, attn[0]).clamp(min=0)
        pictures = overlay(repeat(image, "c h w -> k c h w", k=len(maps)), maps, cells=anatomy.cells)
        for head, picture in enumerate(pictures):
            sheet.show(picture, layer, head, anatomy.grid, anatomy.cells)
    sheet.save(path)


@plot_style
def draw_curves(curves: Mapping[str, Curves], path: str | Path) -> None:
    """Draw how a map is scored: the probability of the class as patches are removed, the mean over images.

    Each method has a panel with its two curves, and the removal area between them in its title.

    Args:
        curves: The curves of ``removal_curves``, by method name.
        path: PNG, SVG or PDF file.
    """
    across = min(len(curves), CURVES_ACROSS)
    down = -(-len(curves) // across)
    figure = Figure(figsize=(3 * across + 0.6, 2.5 * down + 0.8))
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.set_axis_off()
    for axes, (name, found) in zip(panels.flat, curves.items(), strict=False):
        most, least = (reduce(part, "b t -> t", "mean").tolist() for part in (found.most_first, found.least_first))
        axes.plot(PERCENTS_GONE, least, color=ORANGE, marker="s", ms=4, label="least relevant removed first")
        axes.plot(PERCENTS_GONE, most, color=BLUE, marker="o", ms=4, label="most relevant removed first")
        axes.fill_between(PERCENTS_GONE, most, least, color=GREY, alpha=0.2, lw=0, label="removal area")
        axes.set_title(f"{name}: {found.area_between.mean():z.2f}")
        axes.set_ylim(0, 1)
    for axes in panels[-1]:
        axes.set_xlabel("patches removed, %")
    for axes in panels[:, 0]:
        axes.set_ylabel("probability of the class")
    images = len(next(iter(curves.values())).most_first)
    figure.suptitle(f"Removal area: the mean of {images} images")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save_figure(figure, path)


@plot_style
def draw_scores(scores: Scores, measure: str, path: str | Path) -> None:
    """Draw one measure of all methods as dots with 95 % intervals, the highest on top; controls in grey.

    Raises:
        ValueError: If the table has no such measure.
    """
    measures = [name for name, value in scores.rows[0].items() if isinstance(value, Interval)]
    if measure not in measures:
        raise ValueError(f"unknown measure {measure!r}: choose one of {', '.join(measures)}")
    rows = sorted(scores.rows, key=lambda row: row[measure].mean)
    figure = Figure(figsize=(6.4, 0.9 + 0.28 * len(rows)))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        mean, low, high = row[measure]
        color = GREY if row["method"] in CONTROLS else BLUE
        axes.plot([low, high], [place, place], color=color, lw=1.5)
        axes.plot(mean, place, "o", color=color, ms=5)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(GREY if row["method"] in CONTROLS else "black")
    controls = [row[measure].mean for row in rows if row["method"] in CONTROLS]
    if controls:
        axes.axvline(max(controls), color=GREY, lw=1, ls="--")
    axes.set_title(scores.note + "; dashed: the best control" * bool(controls), fontsize="medium", loc="left")
    axes.set_xlabel(MEASURES.get(measure, measure))
    save_figure(figure, path)


def _captions(
    names: Sequence[str], logits: Tensor | None, class_names: Sequence[str] | None, labels: Tensor | None
) -> list[tuple[str, str]]:
    """Return the text below each image, and its colour."""
    lines, colors = [[printable(name)] if name else [] for name in names], ["black"] * len(names)
    if logits is not None:
        known = name_classes(class_names, logits.shape[1])
        probabilities, classes = (values.tolist() for values in logits.detach().float().softmax(dim=-1).max(dim=-1))
        for index, (k, probability) in enumerate(zip(classes, probabilities, strict=True)):
            one = f"logit {logits[index, k]:.2f}"  # a softmax of one logit is always 1
            lines[index].append(f"{known[k]} ({f'{100 * probability:.0f} %' if len(known) > 1 else one})")
            if labels is not None:
                lines[index].append(f"true: {known[labels[index]]}")
                colors[index] = "black" if labels[index] == k else ORANGE
    texts = ["\n".join(textwrap.fill(line, TEXT_WIDTH) for line in of_image) for of_image in lines]
    return list(zip(texts, colors, strict=True))


def _column_title(name: str, smooth: bool) -> str:
    return name + ("\n(any class)" if name in CLASS_AGNOSTIC else "") + ("\nsmoothed" if smooth else "")
