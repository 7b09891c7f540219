"""A figure of the attention of a model beside different attention that gives the same predictions."""

from pathlib import Path

from torch import Tensor

from vit.explain.evaluation.adversarial import AdversarialAttention
from vit.explain.heatmap import overlay
from vit.explain.sheet import Sheet


def draw_adversarial(images: Tensor, result: AdversarialAttention, path: str | Path) -> None:
    """Draw each image beside its attention before and after the search, with the distances between the two.

    Args:
        images: The images for display (see ``displayable``), (B, C, H, W).
        result: What ``adversarial_attention`` found for them.
        path: The PNG file.

    Raises:
        ValueError: If there are not as many images as the result has.
    """
    if len(images) != len(result.divergence):
        raise ValueError(f"{len(images)} images do not fit a result of {len(result.divergence)}: give the same images")
    first, last = result.layers[0], result.layers[-1]
    before = f"attention\nof layer {first}" if first == last else f"rollout\nof layers {first} to {last}"
    after = f"adversarial\n{before.split()[0]}"
    sheet = Sheet(
        images.shape[-2:],
        rows=len(images),
        groups=[3],
        title="Other attention, same predictions",
        lines_above=2,
        lines_below=3,
    )
    cells = result.anatomy.cells
    pictures = [overlay(images, maps.clamp(min=0), cells=cells) for maps in result.maps()]
    for column, title in enumerate(("image", before, after)):
        sheet.write_above(column, title)
    for row, image in enumerate(images):
        sheet.show(image, row, 0)
        for column, overlaid in enumerate(pictures, start=1):
            sheet.show(overlaid[row], row, column, result.anatomy.grid, cells)
        divergence, variation = result.divergence[row].item(), result.total_variation[row].item()
        sheet.write_below(
            row, 2, f"divergence {divergence:.2f}\nof at most 0.69 nats\nprobabilities move by {variation:.3f}"
        )
    sheet.save(path)
