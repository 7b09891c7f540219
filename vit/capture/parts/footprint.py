"""Finds by experiment which pixels each patch sees, and divides the image into the cells of a map.

To divide the image evenly would be a guess: a model may crop, pad or resize its images, its convolutions may leave a
border, and its patches may overlap. Here single lines of pixels are changed, many at once if they are so far apart that
no patch sees two of them.

Letters in the einops patterns: r s rows and columns of patches, l lines of pixels, k rows or columns of patches that
the lines run along, o the other ones.
"""

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.experiments.moved import noise_like, spread_of
from vit.capture.parts.patches import Layout, noise_responses, values_of
from vit.capture.remedy import CHOOSE_OTHERS

LEAST_SHARE = 0.1  # of the mean response of a row of patches: a patch that responds less does not see the line
ROUNDING = 1e-6  # of the largest value
FAR = 10  # standard deviations of the pixels
NOISES = 8  # that are tried if some pixels seem to move no token
UNSEEN = -1  # the cell of a pixel that no patch sees
AXES = ("row", "column")


def find_cells(model: nn.Module, image: Tensor, call: int, layout: Layout) -> Tensor:
    """Return the patch that each pixel of an image (1, C, H, W) belongs to, or -1 if no patch sees it: (H, W).

    Patches are numbered row by row from 0. Of overlapping patches, a pixel belongs to the one with the nearest middle.
    A line of pixels that changes patches by at most 5 % of their largest response counts as one that none sees (20 % if
    a norm over the whole image makes each line change all tokens).

    Args:
        model: A ViT in eval mode.
        image: The image that is changed.
        call: The attention call whose values show which tokens move.
        layout: The patches among the tokens, as ``find_patches`` returns them.

    Raises:
        ValueError: If the patches are no rows and columns of pixels, or lie closer than the pixels.
    """
    rows, columns = (_patch_of_lines(model, image, call, layout, axis) for axis in (0, 1))
    cells = torch.where((rows[:, None] < 0) | (columns < 0), UNSEEN, rows[:, None] * layout.grid[1] + columns)
    return torch.where(_never_seen(model, image, call), UNSEEN, cells.to(image.device))


def even_cells(sides: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Return the cell of each pixel if an image of these rows and columns of pixels is divided evenly: (H, W).

    >>> even_cells((2, 4), (1, 2)).tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    rows, columns = (
        torch.div((torch.arange(side) + 0.5) * cells, side, rounding_mode="floor").long()
        for side, cells in zip(sides, grid, strict=True)
    )
    return rows[:, None] * grid[1] + columns


def are_even(cells: Tensor, grid: tuple[int, int]) -> bool:
    """Return whether cells (H, W) divide the whole image evenly."""
    return torch.equal(cells.cpu(), even_cells(cells.shape, grid))


def check_even(cells: Tensor, grid: tuple[int, int], model: str) -> None:
    """Raise a ValueError if cells (H, W) do not divide the whole image evenly."""
    if not are_even(cells, grid):
        raise ValueError(
            f"{model} does not divide images of {cells.shape[0]} x {cells.shape[1]} pixels evenly into {grid[0]} x "
            f"{grid[1]} patches ({int((cells < 0).sum())} pixels are seen by none), which is needed here: give images "
            "of another size, cropped and resized as the model does it inside"
        )


def cell_edges(cells: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the first pixel of each row and column of cells, and the one after its last: (rows, 2), (columns, 2).

    >>> cell_edges(torch.tensor([[-1, 0, 0, 1], [-1, 0, 0, 1]]), (1, 2))[1].tolist()
    [[1, 3], [3, 4]]
    """
    cells = cells.cpu()
    rows = torch.where(cells < 0, UNSEEN, torch.div(cells, grid[1], rounding_mode="floor")).amax(dim=1)
    columns = torch.where(cells < 0, UNSEEN, cells.remainder(grid[1])).amax(dim=0)
    of_rows, of_columns = (
        torch.stack(
            [torch.stack([(of == cell).nonzero()[0, 0], (of == cell).nonzero()[-1, 0] + 1]) for cell in range(n)]
        )
        for of, n in zip((rows, columns), grid, strict=True)
    )
    return of_rows, of_columns


def _patch_of_lines(model: nn.Module, image: Tensor, call: int, layout: Layout, axis: int) -> Tensor:
    """Return the row (axis 0) or column (axis 1) of patches that each line of pixels belongs to, or -1: (side,)."""
    shares = _shares_of_lines(model, image, call, layout, axis)
    means = reduce(shares, "l k o -> l k", "mean")
    owners = divide_lines(means > layout.faint)
    count = means.shape[1]
    if len(owners[owners >= 0].unique()) < count:
        raise ValueError(
            f"the patches of {type(model).__name__} lie closer than the pixels ({count} {AXES[axis]}s of patches over "
            f"{int((owners >= 0).sum())} {AXES[axis]}s of pixels that they see), so some have no pixel of their own: "
            "give larger images"
        )
    seen = (owners >= 0).nonzero()[:, 0]
    blind = shares[seen, owners[seen]].amin(dim=1) < LEAST_SHARE * means[seen, owners[seen]]
    if blind.any():
        line = int(seen[int(blind.double().argmax())])
        raise ValueError(
            f"the patches of {type(model).__name__} are no rows and columns of pixels ({AXES[axis]} {line} of the "
            f"pixels moves some of the patches of {AXES[axis]} {int(owners[line])} and not others), so their cells "
            f"cannot be told: give grid=(rows, columns), and {CHOOSE_OTHERS}"
        )
    return owners


def _shares_of_lines(model: nn.Module, image: Tensor, call: int, layout: Layout, axis: int) -> Tensor:
    """Return how much each patch responds to each line of pixels, as a share of its largest response: (l, k, o)."""
    side, (low, high) = image.shape[2 + axis], layout.bounds[axis]
    lines = torch.arange(side)
    period = min(side, int((high - low).max()))
    numbers = lines.remainder(period)  # lines of equal number are changed in one image
    responses = noise_responses(model, image, call, axis, numbers)[:, layout.patches]
    near = (lines[:, None] >= low) & (lines[:, None] < high)
    shares = torch.where(near, responses[numbers], 0.0) / responses.amax(dim=0)
    pattern = "l (r s) -> l r s" if axis == 0 else "l (r s) -> l s r"
    return rearrange(shares, pattern, r=layout.grid[0])


@torch.enable_grad()
def _never_seen(model: nn.Module, image: Tensor, call: int) -> Tensor:
    """Return which pixels move no token, (H, W). Lines miss some of them, such as those outside of a round window."""
    never = torch.ones(image.shape[-2:], dtype=torch.bool, device=image.device)
    for seed in range(NOISES):  # behind a ReLU, the slope of a pixel is 0 by chance
        noisy = (image + noise_like(image, seed)).detach().requires_grad_()
        values = values_of(model, noisy, call)
        slope = (
            torch.autograd.grad(values.square().sum(), noisy, allow_unused=True)[0] if values.requires_grad else None
        )
        if slope is None:  # the tokens are made without gradients
            return torch.zeros_like(never)
        never &= reduce(slope.abs(), "1 c h w -> h w", "max") == 0
        if not never.any():
            return never
    # A slope of zero is no proof, because a maximum has one too: it takes a pixel that is much brighter or darker.
    with torch.no_grad():
        far = [torch.where(never, noisy + sign * FAR * spread_of(image), noisy) for sign in (0, 1, -1)]
        usual, *others = (values_of(model, each, call) for each in far)
    moved = max(float((other - usual).abs().max()) for other in others)
    return never & bool(moved <= ROUNDING * float(usual.abs().max()))


def divide_lines(seen: Tensor) -> Tensor:
    """Return the patch that each line belongs to, or -1, from the lines that each patch sees: (l, k) -> (l,).

    >>> divide_lines(torch.tensor([[0, 0], [1, 0], [1, 0], [1, 1], [0, 1], [0, 1]]).bool()).tolist()
    [-1, 0, 0, 0, 1, 1]
    """
    lines = torch.arange(len(seen))
    # A patch at the border sees fewer lines, and its middle would be too far inside.
    first = torch.where(seen, lines[:, None], len(seen)).amin(dim=0)
    end = torch.where(seen, lines[:, None] + 1, 0).amax(dim=0)
    length = (end - first).max()
    whole = end - first == length
    middle = torch.where(
        whole | (first > first.min()) & (end < end.max()),
        (first + end) / 2,
        torch.where(first == first.min(), end - length / 2, first + length / 2),
    )
    distance = (lines[:, None] + 0.5 - middle).abs()
    nearest = torch.where(seen, distance, torch.inf).argmin(dim=1)
    return torch.where(seen.any(dim=1), nearest, UNSEEN)
