"""A figure of the attention of a model beside different attention that gives the same predictions."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit.explain.evaluation.adversarial import AdversarialAttention
from vit.explain.heatmap import overlay
from vit.explain.image_grid import Sheet
from vit.support.class_names import name_classes


def draw_adversarial(
    images: Tensor, result: AdversarialAttention, path: str | Path, class_names: Sequence[str] | None = None
) -> None:
    """Draw each image beside its attention and prediction before and after the search, with the distance of the two.

    Attention is drawn on even grey, not on the image, so that the two can be compared patch by patch.

    Args:
        images: The images for display (see ``displayable``), (B, C, H, W).
        result: What ``adversarial_attention`` found for them.
        path: The PNG file.
        class_names: Names of the classes, in the order of the logits; None shows numbers.

    Raises:
        ValueError: If there are not as many images as the result has, or names as classes.
    """
    if len(images) != len(result.divergence):
        raise ValueError(f"{len(images)} images do not fit a result of {len(result.divergence)}: give the same images")
    names = name_classes(class_names, result.probabilities_before.shape[-1])
    first, last = result.layers[0], result.layers[-1]
    before = f"attention\nof layer {first}" if first == last else f"rollout\nof layers {first} to {last}"
    after = f"adversarial\n{before.split()[0]}"
    sheet = Sheet(
        images.shape[-2:],
        rows=len(images),
        groups=[3],
        title=f"Other attention, same predictions ({math.log(2):.2f} nats is the maximum)",
        lines_above=2,
        lines_below=2,
    )
    cells = result.anatomy.cells
    even = torch.full(images.shape, 0.5)
    pictures = [overlay(even, maps.clamp(min=0), cells=cells) for maps in result.maps()]
    for column, title in enumerate(("image", before, after)):
        sheet.write_above(column, title)
    for row, image in enumerate(images):
        sheet.show(image, row, 0)
        for column, overlaid in enumerate(pictures, start=1):
            sheet.show(overlaid[row], row, column, result.anatomy.grid, cells)
        predicted = result.probabilities_before[row].argmax()
        for column, probabilities in enumerate((result.probabilities_before, result.probabilities_after), start=1):
            text = f"{names[predicted]}: {100 * probabilities[row, predicted]:.1f} %"
            if column == 2:
                text += f"\n{result.divergence[row]:.2f} nats apart"
            sheet.write_below(row, column, text)
    sheet.save(path)
