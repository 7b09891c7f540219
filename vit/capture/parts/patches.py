"""Finds by experiment which token is which patch: it changes strips of pixels and sees which tokens change.

The size of a patch and the number of tokens are not enough to tell. Patches may overlap, a model may resize its images,
and other tokens may come before or after the patches.

Letters in the einops patterns: b changed images, h heads, m keys, d channels of a head, s strips,
r c rows and columns of patches or pixels.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.experiments.moved import COARSE, UNITS, spread_of
from vit.capture.interception.head_order import intercept

STRIPS_AT_ONCE = 32
DRAWS = 2  # of noise per strip, because a token may respond little to a single draw
# The place of a token is the strips that change it by more than this share of its largest response. The second share
# is for models with a norm over the whole image, in which each strip changes all tokens a little.
FAINT = (0.05, 0.2)
LEAST_GAP = 0.1  # between two rows of patches, as a share of the height of a row
SPREAD = 0.75  # if a token responds to more than this share of the strips, it depends on the whole image


@dataclass(frozen=True)
class Layout:
    """The place of the patches among the tokens: a grid (rows, columns), row by row, from token ``first`` on.

    Attributes:
        grid: Rows and columns of patches.
        first: Number of tokens before them.
        bounds: Two rows and two columns of pixels between which each patch lies: (2, patches) for each axis.
        faint: A patch sees the pixels that change it by more than this share of its largest response.
    """

    grid: tuple[int, int]
    first: int
    bounds: tuple[Tensor, ...] = field(default=(), compare=False, repr=False)
    faint: float = field(default=0.0, compare=False, repr=False)

    @property
    def patches(self) -> slice:
        """The positions of the patches among the tokens."""
        return slice(self.first, self.first + self.grid[0] * self.grid[1])


def find_patches(model: nn.Module, image: Tensor, call: int, num_tokens: int) -> Layout | None:
    """Find the tokens that are patches by changing strips of an image (1, C, H, W).

    Every row and every column of a grid responds to its own strips. If no strip changes a token, it is not a patch. If
    every strip changes it, it is not a patch either, but for example a class token that depends on the whole image.
    Changes are measured in the values of attention ``call``, the first that is a layer.

    Returns:
        The grid that all tokens with a place form row by row, or None if they form no grid. Reasons are patches in
        another order, several windows of patches, attention over channels, or tokens that depend on the whole image.
    """
    sides = image.shape[-2:]
    values = values_of(model, image, call)
    floor = _rounding_of(values)
    least = 0.05 if torch.finfo(image.dtype).bits < 32 else 1e-3
    coarse = 2 * math.isqrt(num_tokens) + 2
    for strips in (tuple(min(side, coarse) for side in sides), sides):  # one strip per pixel only if coarse strips fail
        responses = [
            noise_responses(model, image, call, axis, _strip_of_line(strips[axis], sides[axis])) for axis in (0, 1)
        ]
        if not all(x.isfinite().all() and x.shape[1] == num_tokens for x in responses):
            return None
        largest = torch.stack([response.amax(dim=0) for response in responses]).amax(dim=0)
        for faint in FAINT:
            places = [(response > faint * response.amax(dim=0)).double() for response in responses]
            found = _lattice(*places, largest, largest > floor, least)
            if found is not None:
                bounds = (_bounds(places[axis][:, found.patches], sides[axis]) for axis in (0, 1))
                return replace(found, bounds=tuple(bounds), faint=faint)
    return None


class _SeenError(Exception):
    """Ends a forward pass early, once the values are known."""


def _strip_of_line(strips: int, side: int) -> Tensor:
    """Return the number of the strip that each of the lines of a side is in, (side,)."""
    return torch.div((torch.arange(side) + 0.5) * strips, side, rounding_mode="floor").long()


@torch.no_grad()
def noise_responses(model: nn.Module, image: Tensor, call: int, axis: int, strip_of: Tensor) -> Tensor:
    """Return how much the values of each token change if noise is added to each strip of lines: (strips, M).

    Args:
        model: A ViT in eval mode.
        image: The image that is changed, (1, C, H, W).
        call: The attention call whose values are read.
        axis: 0 if lines are rows of pixels, 1 if they are columns.
        strip_of: The number of the strip that each line is in, from 0, (H,) or (W,).
    """
    generator = torch.Generator().manual_seed(0)
    spread = spread_of(image)
    strip_of = strip_of.to(image.device)
    squares = []
    for part in torch.arange(int(strip_of.max()) + 1, device=image.device).split(STRIPS_AT_ONCE):
        inside = strip_of == part[:, None]
        mask = rearrange(inside, "b r -> b 1 r 1" if axis == 0 else "b c -> b 1 1 c")
        square = 0.0
        for _ in range(DRAWS):
            noise = spread * torch.randn(image.shape, generator=generator).to(image)
            values = values_of(model, torch.cat([image, torch.where(mask, image + noise, image)]), call)
            tokens = rearrange(values, "b h m d -> b m (h d)").cpu().double()
            square = square + reduce((tokens[1:] - tokens[:1]) ** 2, "b m d -> b m", "sum")
        squares.append(square)
    return torch.cat(squares).sqrt()


def values_of(model: nn.Module, images: Tensor, call: int) -> Tensor:
    """Return the values (B, H, M, d) of an attention call. The forward pass stops there."""
    seen = []

    def keep(index: int, attn: Tensor) -> Tensor:
        if index == call:
            intercepted.check_all_images(call, attn)
            seen.append(intercepted.values)
            raise _SeenError
        return attn

    intercepted = intercept(model, images, keep)
    try:
        with intercepted:
            model(images)
    except _SeenError:
        pass
    return seen[0]


def _rounding_of(values: Tensor) -> Tensor:
    """Return what rounding may change in the values of each token: (1, H, M, d) -> (M,)."""
    lengths = rearrange(values[0], "h m d -> m (h d)").cpu().double().norm(dim=-1)
    return UNITS.get(values.dtype, COARSE) * torch.finfo(values.dtype).eps * lengths


def _lattice(by_rows: Tensor, by_columns: Tensor, largest: Tensor, moving: Tensor, least: float) -> Layout | None:
    """Return the grid of the tokens, from the strips of rows and columns that change each, (strips, M) twice.

    Args:
        by_rows: Which strips of rows change each token.
        by_columns: Which strips of columns do.
        largest: The largest change of each token, (M,).
        moving: Whether it is more than rounding, (M,).
        least: A patch changes by more than this share of what the patch that changes most does.
    """
    # A single row of patches responds to every strip of rows, hence the ``&``. A single patch responds to every strip.
    spread = (by_rows.mean(dim=0) > SPREAD) & (by_columns.mean(dim=0) > SPREAD)
    alone = moving.sum() == 1
    # A class token made of the whole image may change far more than the patches.
    local = moving & ~spread
    moves = moving & (largest > least * (largest[local] if local.any() else largest).max())
    placed = (moves if alone else moves & ~spread).nonzero()[:, 0]
    if len(placed) < (1 if alone else 2):
        return None
    first, count = int(placed[0]), len(placed)
    if int(placed[-1]) != first + count - 1 or not _in_one_piece(by_rows[:, placed], by_columns[:, placed]):
        return None
    rows, columns = _centers(by_rows[:, placed]), _centers(by_columns[:, placed])
    for height in (n for n in range(1, count + 1) if count % n == 0):
        of_rows, of_columns = rearrange(rows, "(r c) -> r c", r=height), rearrange(columns, "(r c) -> c r", r=height)
        if _ascends(of_rows) and _ascends(of_columns):
            return Layout((height, count // height), first)
    return None


def _centers(place: Tensor) -> Tensor:
    """Return the middle of the place of each token, from 0 to 1: (strips, M) -> (M,)."""
    strips = len(place)
    before, behind = place.argmax(dim=0), place.flip(0).argmax(dim=0)
    return (before + strips - behind) / (2 * strips)


def _in_one_piece(*places: Tensor) -> bool:
    """Return whether the strips that change each token are adjacent. With several windows, they have gaps."""
    return all(((place[0] + (place.diff(dim=0) > 0).sum(dim=0)) <= 1).all() for place in places)


def _bounds(place: Tensor, side: int) -> Tensor:
    """Return lines between which the place of each token lies: (strips, M) -> (2, M).

    They include one more strip on each side: a few of its lines may change the token too little for the whole strip.
    """
    strips = len(place)
    low, high = place.argmax(dim=0) - 1, strips + 1 - place.flip(0).argmax(dim=0)
    return torch.stack([(low * side / strips).floor().clamp(min=0), (high * side / strips).ceil().clamp(max=side)])


def _ascends(places: Tensor) -> bool:
    """Return whether places grow evenly from each row to the next."""
    if len(places) == 1:
        return True
    middles = places.mean(dim=1)
    step = (middles[-1] - middles[0]) / (len(places) - 1)
    even = middles[0] + step * torch.arange(len(places))
    near = (places - even[:, None]).abs().amax() <= step
    gaps = places[1:].amin(dim=1) - places[:-1].amax(dim=1)
    return bool(near and (gaps > LEAST_GAP * step).all())
