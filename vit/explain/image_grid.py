"""A figure of pictures in rows and columns, with a colour bar.

Letters in the einops patterns: c channels, h w rows and columns of pixels.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from einops import rearrange, repeat
from matplotlib.figure import Figure
from torch import Tensor

from vit.capture.parts.footprint import cell_edges, even_cells
from vit.explain.heatmap import shade
from vit.support.picture_files import save_photographs
from vit.support.precision import in_double

CELL, GAP, LINE = 1.6, 0.1, 0.15  # inches: width of a picture, gap between two, height of a line of text
TITLE = 0.35  # inches: height of the title
BAR, BAR_WIDTH = 0.85, 0.2  # inches: width of the colour bar with its text, and without
DOTS, MOST_DOTS = 120, 240  # per inch
ROUNDING = 1e-9  # inches
MOST_RULED = 20  # most patches per side that get lines between them; more lines would hide the patches


class Sheet:
    """Pictures of one size in a single ``Axes``; with an ``Axes`` for each, the layout would take seconds.

    Args:
        size: Rows and columns of pixels of each picture.
        rows: Number of rows of pictures.
        groups: Number of columns of pictures in each group; groups are separated by a wider gap.
        title: Title of the sheet.
        lines_above: Lines of text above the columns.
        lines_below: Lines of text below each row.
        left: Width of the text on the left, in inches.
    """

    def __init__(
        self,
        size: Sequence[int],
        rows: int,
        groups: Sequence[int],
        *,
        title: str = "",
        lines_above: int = 1,
        lines_below: int = 0,
        left: float = GAP,
    ) -> None:
        self.size = size
        self.lefts = [
            left + (CELL + GAP) * column + 3 * GAP * group
            for group, count in enumerate(groups)
            for column in range(sum(groups[:group]), sum(groups[:group]) + count)
        ]
        self.tall = CELL * size[0] / size[1]
        self.pitch = self.tall + GAP + LINE * lines_below
        self.top = GAP + TITLE * bool(title) + LINE * lines_above
        right = self.lefts[-1] + CELL + GAP
        height = self.top + rows * self.pitch + GAP
        self.figure = Figure(figsize=(right + BAR, height))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.axis("off")
        self._add_bar(right + GAP, self.top, min(self.top + rows * self.pitch - GAP, self.top + 2.5))
        self.axes.text((left + right - GAP) / 2, 1.5 * GAP, title, ha="center", va="top", fontsize=10)
        self.extent = {"xlim": (0, right + BAR), "ylim": (height, 0), "aspect": "auto"}

    def show(
        self, image: Tensor, row: int, column: int, grid: Sequence[int] = (1, 1), cells: Tensor | None = None
    ) -> None:
        """Draw a picture (C, H, W), float in [0, 1] or uint8, with thin lines between the patches of its grid.

        The patches divide the picture evenly, or are its ``cells``, as in ``overlay``.
        """
        left, top = self.lefts[column], self.top + row * self.pitch
        white = 1 if image.is_floating_point() else 255
        pixels = rearrange(image.detach().cpu(), "c h w -> h w c").numpy()
        self.axes.imshow(pixels, cmap="gray", vmin=0, vmax=white, extent=(left, left + CELL, top + self.tall, top))
        if max(grid) <= MOST_RULED:
            look = {"color": "white", "alpha": 0.25, "lw": 0.4}
            cells = even_cells((grid[0], grid[1]), (grid[0], grid[1])) if cells is None else cells
            of_rows, of_columns = (in_double(edges.unique()) for edges in cell_edges(cells, (grid[0], grid[1])))
            of_rows, of_columns = top + of_rows * self.tall / cells.shape[0], left + of_columns * CELL / cells.shape[1]
            # The border of the picture has no line.
            across = of_rows[(of_rows > top + ROUNDING) & (of_rows < top + self.tall - ROUNDING)]
            down = of_columns[(of_columns > left + ROUNDING) & (of_columns < left + CELL - ROUNDING)]
            self.axes.hlines(across.tolist(), float(of_columns[0]), float(of_columns[-1]), **look)
            self.axes.vlines(down.tolist(), float(of_rows[0]), float(of_rows[-1]), **look)

    def write_above(self, column: int, text: str) -> None:
        """Write text above a column."""
        self.axes.text(self.lefts[column] + CELL / 2, self.top - 0.04, text, ha="center", va="bottom", fontsize=8)

    def write_below(self, row: int, column: int, text: str, color: str = "black") -> None:
        """Write text below a picture."""
        bottom = self.top + row * self.pitch + self.tall + 0.04
        self.axes.text(self.lefts[column] + CELL / 2, bottom, text, ha="center", va="top", fontsize=8, color=color)

    def write_left(self, row: int, text: str) -> None:
        """Write text to the left of a row."""
        middle = self.top + row * self.pitch + self.tall / 2
        self.axes.text(self.lefts[0] - 0.05, middle, text, ha="right", va="center", fontsize=8)

    def save(self, path: str | Path) -> None:
        """Write the PNG file. The resolution keeps each pixel of large pictures, up to ``MOST_DOTS`` per inch."""
        self.axes.set(**self.extent)
        save_photographs(self.figure, path, dpi=min(max(DOTS, self.size[1] / CELL), MOST_DOTS))

    def _add_bar(self, left: float, top: float, bottom: float) -> None:
        """Add the colour bar: the colour of each share, from left to right on black to white places of the image."""
        shares, grey = repeat(torch.linspace(1, 0, 256), "h -> 1 h w", w=64), torch.linspace(0, 1, 64)
        colors = rearrange(shade(repeat(grey, "w -> 1 1 h w", h=256), shares)[0], "c h w -> h w c").numpy()
        self.axes.imshow(colors, extent=(left, left + BAR_WIDTH, bottom, top))
        for share in (0.0, 0.5, 1.0):
            height = bottom + share * (top - bottom)
            self.axes.text(left + BAR_WIDTH + 0.5 * GAP, height, f"{share:g}", va="center", fontsize=8)
        middle = left + BAR_WIDTH + 3.5 * GAP, (top + bottom) / 2
        self.axes.text(*middle, "share of the largest value", rotation=90, ha="center", va="center", fontsize=8)
