"""A sheet of texts: where a reader looks while it writes each letter.

Letters in the einops patterns: t letters of a text, c image channels, h w rows and columns of pixels.
"""

from collections.abc import Sequence
from pathlib import Path

from einops import repeat
from torch import Tensor

from vit.explain.heatmap import overlay
from vit.explain.image_grid import Sheet
from vit.support.plotting import plain_text


@plain_text
def draw_text_maps(
    images: Tensor,
    maps: Tensor,
    texts: Sequence[str],
    path: str | Path,
    *,
    title: str = "",
    smooth: bool = False,
    cells: Tensor | None = None,
) -> None:
    """Draw a row for each picture: the picture, then the map of each letter over it, with the letter below.

    Args:
        images: Pictures for display (see ``displayable``), (B, C, H, W).
        maps: Maps (B, T, rows, columns) of the steps that write the letters.
        texts: The texts that the reader wrote, with at most T letters each.
        path: The PNG file.
        title: Title of the sheet.
        smooth: Whether maps are interpolated between patches.
        cells: The patch of each pixel, as ``cells_of_text`` returns it. None divides the pictures evenly.
    """
    most = max(map(len, texts), default=0)
    sheet = Sheet(images.shape[-2:], len(images), [1 + most], title=title, lines_below=1)
    grid = (1, 1) if smooth else (maps.shape[-2], maps.shape[-1])
    for row, (image, of_text, text) in enumerate(zip(images, maps, texts, strict=True)):
        sheet.show(image, row, 0)
        sheet.write_below(row, 0, text)
        repeated = repeat(image, "c h w -> t c h w", t=len(text))
        pictures = overlay(repeated, of_text[: len(text)], cells=cells, smooth=smooth)
        for step, (letter, picture) in enumerate(zip(text, pictures, strict=True), start=1):
            sheet.show(picture, row, step, grid)
            sheet.write_below(row, step, letter)
    sheet.save(path)
