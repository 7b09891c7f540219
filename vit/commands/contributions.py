"""The pictures and the table of ``vit-attention explain --contributions``."""

import csv
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from torch import Tensor

import vit
from vit.explain.contribution_figure import draw_contributions
from vit.explain.decomposition import Contributions, contributions
from vit.explain.maps import Subject
from vit.explain.readout import logit_lens
from vit.support.files import replacing
from vit.support.printable import csv_text

COLUMNS = ("file", "class", "term", "layer", "head", "token", "row", "column", "value")


def draw_terms(
    model: vit.VisionTransformer, subject: Subject, pixels: Tensor, title: str, names: Sequence[str], path: Path
) -> Contributions:
    """Split the logit of one image into its terms, and draw them: the pixels (C, H, W) are those that the model saw."""
    found = contributions(model, subject.images, subject.target, versus=subject.versus)
    draw_contributions(pixels, found, logit_lens(model, subject.images), path, class_names=names, title=title)
    return found


def write_terms(path: Path, files: Sequence[Path], classes: Sequence[str], found: Sequence[Contributions]) -> None:
    """Write a table of all terms; those of a file add up to its logit, or to the difference of two.

    Args:
        path: The CSV file.
        files: The image files.
        classes: The class or the two classes that the logit of each is of, in words.
        found: The contributions of each, with one image.
    """
    with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, about, terms in zip(files, classes, found, strict=True):
            for *where, value in _terms(terms):
                writer.writerow((csv_text(str(name)), csv_text(about), *where, f"{value:.6g}"))


def _terms(found: Contributions) -> Iterator[tuple[str | int | float, ...]]:
    _, layers, heads, tokens = found.heads.shape
    columns = found.grid[1]

    def place(token: int) -> tuple[int | str, ...]:
        patch = token - found.num_prefix_tokens
        is_patch = 0 <= patch < found.grid[0] * columns
        return (token, *divmod(patch, columns)) if is_patch else (token, "", "")

    for layer, head, token in product(range(layers), range(heads), range(tokens)):
        yield "head", layer, head, *place(token), found.heads[0, layer, head, token].item()
    for layer in range(layers):
        yield "MLP", layer, "", "", "", "", found.mlps[0, layer].item()
    for token in range(tokens):
        yield "embedding", "", "", *place(token), found.embedding[0, token].item()
    yield "biases", "", "", "", "", "", found.bias[0].item()
