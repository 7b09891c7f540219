"""Scores of maps on images in which the place that decides the class is known without annotation.

There are two kinds of images. ``vit.data.planted`` hides a digit in clutter. A mosaic tiles four images and asks for
the class of one (GridPG: Boehle, Fritz and Schiele 2021, "Convolutional Dynamic Alignment Networks for Interpretable
Classifications").

Letters in the einops patterns: b images, k tiles of a mosaic, i j their rows and columns, c channels, h w rows and
columns of pixels, r s rows and columns of cells, n cells.
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.capture.parts.footprint import cell_edges
from vit.explain.evaluation.similarity import share_highest

INSIDE = 0.25  # a cell with at least this share covered is inside: a corner of half its height and width is enough


def mosaics(images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Tile each image with three images of other classes, all four classes different, each image halved in size.

    >>> images, labels = torch.rand(5, 3, 32, 32), torch.tensor([4, 0, 7, 2, 7])
    >>> tiled, cells, classes = mosaics(images, labels, torch.Generator().manual_seed(0))
    >>> tiled.shape, classes.shape
    (torch.Size([5, 3, 32, 32]), torch.Size([5, 4]))
    >>> classes[torch.arange(5), cells]
    tensor([4, 0, 7, 2, 7])

    Args:
        images: Images (B, C, H, W), uint8 or float, of even height and width.
        labels: Their classes (B,).
        generator: CPU generator that draws the places and the other images; None is torch's global generator.

    Returns:
        Mosaics (B, C, H, W); the cells (B,) that hold the image asked for, 0 to 3 in reading order; and the labels
        (B, 4) of all cells. The b-th mosaic asks for the b-th image.

    Raises:
        ValueError: If there are fewer than four classes, or height or width is odd.
    """
    height, width = images.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"images of {height} x {width} pixels cannot be halved: resize them to even sides")
    if len(labels) != len(images):
        raise ValueError(f"{len(images)} images have {len(labels)} labels: give each its own")
    members = _four_classes(labels.cpu(), generator)
    cells = torch.randint(4, (len(images),), generator=generator)
    order = torch.arange(4).repeat(len(images), 1)
    order[torch.arange(len(images)), cells] = 0
    order[:, 0] = cells
    members = members.gather(1, order).to(images.device)
    tiles = rearrange(halved(images)[members], "b (i j) c h w -> b c (i h) (j w)", i=2)
    return tiles, cells.to(images.device), labels[members.to(labels.device)]


def halved(images: Tensor) -> Tensor:
    """Resize images to half the height and width, antialiased: (B, C, H, W) -> (B, C, H / 2, W / 2), same dtype."""
    height, width = images.shape[-2:]
    small = F.interpolate(images.float(), (height // 2, width // 2), mode="bilinear", antialias=True)
    return small.to(images.dtype) if images.is_floating_point() else small.round().to(images.dtype)


def _four_classes(labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """Pick three random images of other, different classes for each image: labels (B,) -> indices (B, 4)."""
    classes, own, counts = labels.unique(return_inverse=True, return_counts=True)
    if len(classes) < 4:
        raise ValueError(
            f"the images are of {len(classes)} classes ({', '.join(map(str, classes.tolist()))}), and a mosaic needs "
            "four: give more images, or shuffle them before taking some"
        )
    scores = torch.rand(len(labels), len(classes), generator=generator)
    scores[torch.arange(len(labels)), own] = -1
    others = scores.topk(3).indices
    nth = (torch.rand(others.shape, generator=generator) * counts[others]).long()
    of_class = own.argsort(stable=True)  # the images class by class
    first = counts.cumsum(0) - counts
    return torch.cat([torch.arange(len(labels))[:, None], of_class[first[others] + nth]], dim=1)


def cells_of_boxes(
    boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int], cells: Tensor | None = None
) -> Tensor:
    """Compute the share of each patch cell that a box covers: (B, 4) -> (B, rows, columns), in [0, 1].

    >>> cells_of_boxes(torch.tensor([[0, 2, 4, 4]]), image_size=(8, 12), grid=(2, 3))
    tensor([[[0.5000, 0.5000, 0.0000],
             [0.0000, 0.0000, 0.0000]]])

    Args:
        boxes: First row, first column, height and width in pixels; what lies outside the image is cut off.
        image_size: Height and width of the images.
        grid: Rows and columns of patches.
        cells: The patch of each pixel, (H, W), as in ``overlay``. None divides the images evenly.
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes have shape {tuple(boxes.shape)}: give (batch, 4), as row, column, height, width")
    if cells is None:
        sides = (torch.arange(count + 1) * (side / count) for side, count in zip(image_size, grid, strict=True))
        edges = [torch.stack([side[:-1], side[1:]], dim=1) for side in sides]
    else:
        edges = list(cell_edges(cells, grid))
    rows, columns = (_shares(boxes[:, axis], boxes[:, axis + 2], edges[axis].to(boxes.device)) for axis in (0, 1))
    return einsum(rows, columns, "b r, b s -> b r s")


def _shares(start: Tensor, length: Tensor, edges: Tensor) -> Tensor:
    """Return which share of each piece of a side lies in intervals: (B,), (B,), (pieces, 2) -> (B, pieces)."""
    first, last = edges.unbind(dim=1)
    inside = (start + length)[:, None].minimum(last) - start[:, None].maximum(first)
    return inside.clamp(min=0) / (last - first)


def cells_of_quadrants(cells: Tensor, grid: tuple[int, int]) -> Tensor:
    """Mark the patch cells in a tile of a 2x2 mosaic: 0 to 3 in reading order, (B,) -> (B, rows, columns), boolean.

    In an odd grid, a cell of the middle row or column lies half in two tiles and counts for neither.

    >>> cells_of_quadrants(torch.tensor([1]), grid=(2, 5)).int()
    tensor([[[0, 0, 0, 1, 1],
             [0, 0, 0, 0, 0]]], dtype=torch.int32)
    """
    rows, columns = grid
    if rows < 2 or columns < 2:
        raise ValueError(f"a grid of {rows} x {columns} has no cell that lies in one tile only: take smaller patches")
    size = torch.tensor(grid, device=cells.device).expand(len(cells), 2)
    place = torch.stack([cells // 2, cells % 2], dim=1) * size
    # An image with two pixels per side of a cell, so that tiles of an odd grid need no fractions.
    return cells_of_boxes(torch.cat([place, size], dim=1), (2 * rows, 2 * columns), grid) == 1


def pointing_game(maps: Tensor, masks: Tensor) -> Tensor:
    """Score whether the maximum lies inside: (B, rows, columns), masks of the same shape -> (B,), in [0, 1].

    If several maxima are equal, the score is the share of them inside. A constant map thus gets the share of the mask.

    >>> mask = torch.tensor([[[True, False, False, False]]])
    >>> [pointing_game(torch.tensor([[row]]), mask).item() for row in ([9, 1, 2, 3], [0, 1, 0, 0], [5, 5, 5, 5])]
    [1.0, 0.0, 0.25]

    Args:
        maps: How much each patch counts for the class asked for.
        masks: Whether each patch is inside, boolean, or the share of it that is; ``INSIDE`` or more counts as inside.
    """
    flat, inside = _flat(maps, masks)
    highest = flat == flat.amax(dim=1, keepdim=True)
    return (highest & inside).sum(dim=1) / highest.sum(dim=1)


def energy_inside(maps: Tensor, masks: Tensor) -> Tensor:
    """Compute the share of the positive mass inside: (B, rows, columns), masks of that shape -> (B,), in [0, 1].

    A map without positive values gets the share of the mask, like a constant map. For the arguments, see
    ``pointing_game``.

    >>> mask = torch.tensor([[[True, False, False, False]]])
    >>> [energy_inside(torch.tensor([[row]]), mask).item() for row in ([3, 1, 0, -8], [5, 5, 5, 5], [0, 0, 0, -1])]
    [0.75, 0.25, 0.25]
    """
    flat, inside = _flat(maps, masks)
    # Without the division by the largest value, sums of huge values overflow and those of tiny values underflow.
    flat = flat.clamp(min=0)
    largest = flat.amax(dim=1, keepdim=True)
    mass = torch.where(largest > 0, flat / largest, 1.0)
    return (mass * inside).sum(dim=1) / mass.sum(dim=1)


def intersection_over_union(maps: Tensor, masks: Tensor) -> Tensor:
    """Compare the mask of k cells with the k highest cells of the map: -> (B,), in [0, 1].

    Cells that tie for the last places share them evenly. A constant map of n cells thus gets k / (2 n - k), less than
    the share of the mask, k / n. For the arguments, see ``pointing_game``.

    >>> mask = torch.tensor([[[True, True, False, False]]])
    >>> maps = ([9, 8, 2, 3], [9, 1, 2, 0], [7, 7, 7, 7])
    >>> [round(intersection_over_union(torch.tensor([[row]]), mask).item(), 4) for row in maps]
    [1.0, 0.3333, 0.3333]
    """
    flat, inside = _flat(maps, masks)
    count = inside.sum(dim=1, keepdim=True)
    common = (share_highest(flat, count) * inside).sum(dim=1)
    return common / (2 * count.squeeze(1) - common)


def _flat(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Check maps and masks and flatten their cells: -> float (B, N), boolean (B, N)."""
    if maps.ndim != 3 or maps.shape != masks.shape:
        raise ValueError(
            f"maps have shape {tuple(maps.shape)} and masks {tuple(masks.shape)}: give both as (batch, rows, columns) "
            "of patches"
        )
    if not maps.isfinite().all():
        raise ValueError("the maps hold NaN or infinity, which no score can rank: look for a division by zero")
    inside = rearrange(masks if masks.dtype == torch.bool else masks >= INSIDE, "b r s -> b (r s)")
    if not inside.any(dim=1).all():
        empty = (~inside.any(dim=1)).nonzero()[0].item()
        covered = masks[empty].float().max().item()
        raise ValueError(
            f"mask {empty} has no cell inside (at most {covered:.2g} of one is covered, and {INSIDE} is needed): "
            "take smaller patches, or give boolean masks"
        )
    flat = rearrange(maps, "b r s -> b (r s)")
    return flat if flat.dtype == torch.float64 else flat.float(), inside
