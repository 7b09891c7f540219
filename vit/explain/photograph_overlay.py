"""Maps over photographs as taken: which pixels each cell covers, and a picture of them.

Letters in the einops patterns: c channels, h w rows and columns of pixels, r s rows and columns of cells.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.capture.parts.footprint import cell_edges, even_cells
from vit.explain.heatmap import UNSEEN, grey_of, shade, shares_of_largest
from vit.support.precision import in_double

LINE = 0.35  # share of white in the lines between cells
LINE_WIDTH = 800  # pixels of a picture's longer side for each pixel of a line's width
ROUNDING = 1e-6  # pixels
FEWEST_RULED = 8  # pixels; cells with a shorter side below this get no lines, which would hide them

Box = tuple[float, float, float, float]


def cell_boxes(box: Box, grid: Sequence[int], cells: Tensor | None = None) -> Tensor:
    """Divide a box into cells: -> (rows, columns, 4), left, top, right and bottom of each in pixels.

    >>> cell_boxes((80.0, 0.0, 560.0, 480.0), (2, 2))[1, 0].tolist()
    [80.0, 240.0, 320.0, 480.0]

    Args:
        box: Left, top, right and bottom of the part of the image that the model was given.
        grid: Rows and columns of cells.
        cells: The cell of each pixel that the model was given, as in ``overlay``. None divides the box evenly.
    """
    down, across = _edges(box, grid, cells)
    tops, lefts = torch.meshgrid(down[:, 0], across[:, 0], indexing="ij")
    bottoms, rights = torch.meshgrid(down[:, 1], across[:, 1], indexing="ij")
    return torch.stack([lefts, tops, rights, bottoms], dim=-1)


def _edges(box: Box, grid: Sequence[int], cells: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return where each row of cells begins and ends, and each column: (rows, 2), (columns, 2)."""
    (left, top, right, bottom), (rows, columns) = box, grid
    cells = even_cells((rows, columns), (rows, columns)) if cells is None else cells
    of_rows, of_columns = (in_double(edges) for edges in cell_edges(cells, (rows, columns)))
    return top + of_rows * (bottom - top) / cells.shape[0], left + of_columns * (right - left) / cells.shape[1]


def overlay_photograph(photograph: Tensor, values: Tensor, box: Box, cells: Tensor | None = None) -> Tensor:
    """Lay a map in colour over the part of a photograph that a model saw: (C, H, W), (rows, columns) -> (3, H, W).

    Colours are those of ``overlay``, with a thin line around each cell. What the model did not see is dark and grey.

    >>> overlay_photograph(torch.rand(3, 48, 64), torch.rand(4, 4), (8.0, 0.0, 56.0, 48.0)).shape
    torch.Size([3, 48, 64])

    Args:
        photograph: Float in [0, 1], or uint8.
        values: Relevance of each cell, non-negative.
        box: Left, top, right and bottom of the part that the model was given, in pixels of the photograph.
        cells: The cell of each pixel that the model was given, as in ``overlay``. None divides the box evenly.

    Raises:
        ValueError: If shapes do not fit, or values are out of range.
    """
    grey = grey_of(photograph[None])[0]
    height, width = grey.shape[-2:]
    (row, in_row, on_row, tall), (column, in_column, on_column, wide) = (
        _cells(side, edges, max(1, round(max(height, width) / LINE_WIDTH)))
        for side, edges in zip((height, width), _edges(box, values.shape, cells), strict=True)
    )
    seen = in_row[:, None] & in_column
    shares = shares_of_largest(values[None])[0][row][:, column]
    picture = torch.where(seen, shade(grey[None], shares[None])[0], UNSEEN * grey)
    if min(tall, wide) >= FEWEST_RULED:
        ruled = seen & (on_row[:, None] | on_column)
        picture = torch.where(ruled, (1 - LINE) * picture + LINE, picture)
    return picture


def _cells(side: int, edges: Tensor, line: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return the cell of each pixel along a side, whether it is in one, and on an edge; and the length of a cell."""
    places = torch.arange(side, dtype=torch.float64) + 0.5
    cells = (torch.searchsorted(edges[:, 0].contiguous(), places, right=True) - 1).clamp(min=0)
    inside = (places >= edges[cells, 0]) & (places < edges[cells, 1])
    from_edges = places[:, None] - edges.flatten()
    from_edge = from_edges.gather(1, from_edges.abs().argmin(dim=1, keepdim=True))[:, 0]
    # The middles of two pixels may be half a pixel from an edge, which rounding must not move.
    on_edge = (from_edge > ROUNDING - line / 2) & (from_edge <= ROUNDING + line / 2)
    return cells, inside, on_edge, float((edges[:, 1] - edges[:, 0]).median())
