"""A picture of images in rows, each with a caption above it.

Letters in the einops patterns: c image channels, h w rows and columns of pixels.
"""

from collections.abc import Sequence
from pathlib import Path

from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor

from vit.support.plotting import plain_text, save_figure

TITLE, LINE, MARGIN = 0.4, 0.17, 0.08  # inches: height of the title and of a line of a caption, space beside an image


@plain_text
def draw_captioned(
    images: Sequence[Tensor],
    captions: Sequence[str],
    colors: Sequence[str],
    title: str,
    path: Path,
    *,
    across: int,
    width: float,
    fontsize: float,
) -> None:
    """Draw images of one size, uint8 (C, H, W), with a caption each.

    Args:
        images: The images.
        captions: The text above each; all have as many lines.
        colors: The colour of each text.
        title: Title of the picture.
        path: File of the picture.
        across: Images in a row.
        width: Width of an image in inches.
        fontsize: Size of the captions in points.
    """
    height = width * images[0].shape[-2] / images[0].shape[-1] if images else 0.0
    caption = LINE * (1 + captions[0].count("\n")) * fontsize / 8 + 0.06 if images else 0.0
    down = -(-len(images) // across)
    size = across * width, TITLE + down * (height + caption)
    figure = Figure(figsize=size)
    # One Axes for all images: the layout of one for each takes seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.text(size[0] / 2, TITLE / 2, title if images else f"{title}: none", ha="center", va="center", fontsize=12)
    for index, (image, text, color) in enumerate(zip(images, captions, colors, strict=True)):
        left, top = width * (index % across), TITLE + caption + (height + caption) * (index // across)
        pixels = rearrange(image, "c h w -> h w c").numpy()
        axes.imshow(pixels, cmap="gray", extent=(left + MARGIN, left + width - MARGIN, top + height - MARGIN, top))
        axes.text(left + width / 2, top - 0.04, text, ha="center", va="bottom", fontsize=fontsize, color=color)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0), aspect="auto")
    save_figure(figure, path, dpi=120)


def trim_name(name: str, letters: int) -> str:
    """Cut a long name, which would cover its neighbour."""
    return name if len(name) <= letters else f"{name[: letters - 3]}..."
