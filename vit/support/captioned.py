"""A picture of images in rows, each with a caption above it.

Letters in the einops patterns: c image channels, h w rows and columns of pixels.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unicodedata import east_asian_width

from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor

from vit.support.picture_files import save_photographs
from vit.support.plotting import plain_text

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
        across: The most images in a row; rows are as even as can be.
        width: Width of an image in inches.
        fontsize: Size of the captions in points.
    """
    height = width * images[0].shape[-2] / images[0].shape[-1] if images else 0.0
    caption = LINE * (1 + captions[0].count("\n")) * fontsize / 8 + 0.06 if images else 0.0
    down = -(-len(images) // across)
    across = -(-len(images) // down) if images else across  # rows of about the same length
    size = across * width, TITLE + down * (height + caption)
    figure = Figure(figsize=size)
    # One Axes for all images: laying out one for each takes seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.text(size[0] / 2, TITLE / 2, title if images else f"{title}: none", ha="center", va="center", fontsize=12)
    for index, (image, text, color) in enumerate(zip(images, captions, colors, strict=True)):
        left, top = width * (index % across), TITLE + caption + (height + caption) * (index // across)
        pixels = rearrange(image, "c h w -> h w c").numpy()
        axes.imshow(pixels, cmap="gray", extent=(left + MARGIN, left + width - MARGIN, top + height - MARGIN, top))
        axes.text(left + width / 2, top - 0.04, text, ha="center", va="bottom", fontsize=fontsize, color=color)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0), aspect="auto")
    save_photographs(figure, path, dpi=120)


def trim_name(name: str, letters: int) -> str:
    """Cut a long name, which would cover its neighbour; a letter of double width, such as a Chinese one, counts twice.

    >>> trim_name("eighteen letters !", 17)
    'eighteen lette...'
    """
    if _width(name) <= letters:
        return name
    return f"{_first(name, letters - 3)}..."


def trim_names(names: Sequence[str], letters: int) -> list[str]:
    """Cut long names; those that would then be equal are cut in the middle, so that both ends stay.

    >>> trim_names(["leaf of an oak, front", "leaf of an oak, back", "birch"], 12)
    ['leaf ...ront', 'leaf ...back', 'birch']
    """
    cut = [trim_name(name, letters) for name in names]
    twice = {short for short, count in Counter(cut).items() if count > 1}
    half = (letters - 3) // 2
    return [
        f"{_first(name, letters - 3 - half)}...{_first(name[::-1], half)[::-1]}"
        if short in twice and short != name
        else short
        for name, short in zip(names, cut, strict=True)
    ]


def _width(name: str) -> int:
    return sum(1 + (east_asian_width(letter) in "WF") for letter in name)


def _first(name: str, width: int) -> str:
    """Return the longest beginning of a name that has at most this width."""
    return next((name[:count] for count in range(len(name), 0, -1) if _width(name[:count]) <= width), "")
