"""Maps over photographs as taken: which pixels each cell covers, and a picture of them.

Letters in the einops patterns: c channels, h w rows and columns of pixels, r s rows and columns of cells.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.explain.heatmap import grey_of, shade, shares_of_largest

UNSEEN = 0.25  # brightness of what the model did not see
LINE = 0.35  # share of white in the lines between cells
LINE_WIDTH = 800  # pixels of a picture's longer side for each pixel of a line's width
ROUNDING = 1e-6  # pixels
FEWEST_RULED = 8  # pixels of a cell's shorter side from which on there are lines; they would hide smaller cells

Box = tuple[float, float, float, float]


def cell_boxes(box: Box, grid: Sequence[int]) -> Tensor:
    """Divide a box into cells: -> (rows, columns, 4), left, top, right and bottom of each in pixels.

    >>> cell_boxes((80.0, 0.0, 560.0, 480.0), (2, 2))[1, 0].tolist()
    [80.0, 240.0, 320.0, 480.0]

    Args:
        box: Left, top, right and bottom of the part of the image that the cells cover.
        grid: Rows and columns of cells.
    """
    left, top, right, bottom = box
    down = torch.linspace(top, bottom, grid[0] + 1, dtype=torch.float64)
    across = torch.linspace(left, right, grid[1] + 1, dtype=torch.float64)
    tops, lefts = torch.meshgrid(down[:-1], across[:-1], indexing="ij")
    bottoms, rights = torch.meshgrid(down[1:], across[1:], indexing="ij")
    return torch.stack([lefts, tops, rights, bottoms], dim=-1)


def overlay_photograph(photograph: Tensor, values: Tensor, box: Box) -> Tensor:
    """Lay a map in colour over the part of a photograph that a model saw: (C, H, W), (rows, columns) -> (3, H, W).

    Colours are those of ``overlay``, with a thin line around each cell. What the model did not see is dark and grey.

    >>> overlay_photograph(torch.rand(3, 48, 64), torch.rand(4, 4), (8.0, 0.0, 56.0, 48.0)).shape
    torch.Size([3, 48, 64])

    Args:
        photograph: Float in [0, 1], or uint8.
        values: Relevance of each cell, non-negative.
        box: Left, top, right and bottom of the part that the cells cover, in pixels of the photograph.

    Raises:
        ValueError: If shapes do not fit, or values are out of range.
    """
    grey = grey_of(photograph[None])[0]
    height, width = grey.shape[-2:]
    rows, columns = values.shape
    (row, in_row, on_row, tall), (column, in_column, on_column, wide) = (
        _cells(side, first, last, count, max(1, round(max(height, width) / LINE_WIDTH)))
        for side, first, last, count in ((height, box[1], box[3], rows), (width, box[0], box[2], columns))
    )
    seen = in_row[:, None] & in_column
    shares = shares_of_largest(values[None])[0][row][:, column]
    picture = torch.where(seen, shade(grey[None], shares[None])[0], UNSEEN * grey)
    if min(tall, wide) >= FEWEST_RULED:
        ruled = seen & (on_row[:, None] | on_column)
        picture = torch.where(ruled, (1 - LINE) * picture + LINE, picture)
    return picture


def _cells(side: int, first: float, last: float, count: int, line: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return of each pixel along a side its cell, whether it is in one and on an edge; and the length of a cell."""
    length = (last - first) / count
    places = (torch.arange(side, dtype=torch.float64) + 0.5 - first) / length
    cells = places.floor().long()
    from_edge = (places - places.round()) * length
    # The middles of two pixels may be half a pixel from an edge, which rounding must not move.
    on_edge = (from_edge > ROUNDING - line / 2) & (from_edge <= ROUNDING + line / 2)
    return cells.clamp(0, count - 1), (cells >= 0) & (cells < count), on_edge, length
