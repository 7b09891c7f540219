"""Checks that the patches of all images of a batch are made of the same pixels.

A model may crop, centre or turn each image by what it shows. The patches are numbered by rows and columns. The pixels
of half of them are changed at a time, in all images, by each digit of the two numbers in binary. Their tokens must move
more than the others in all images as in the first, each measured by what it moves if all pixels are changed.

Patches that overlap move with both halves, even if they are a few pixels away. So every second row of patches, or every
third or fourth, must have gradients in the same rows of pixels in all images, and the columns likewise.

Letters in the einops patterns: b images, c channels, y x rows and columns of pixels, h heads, m keys, d channels of a
head, r s rows and columns of patches.
"""

from collections.abc import Iterator

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy
from vit.capture.experiments.halves import separating_halves
from vit.capture.experiments.moved import noise_like, spread_of
from vit.capture.interception.eager import as_written
from vit.capture.parts.patches import values_of
from vit.capture.remedy import CHOOSE_OTHERS
from vit.support.precision import in_double

APART = 0.3  # how much more the tokens of a half must move for it to tell: patches that overlap move with both halves
ALL = 0.95  # patches that move with one half alone
NOISES = 4  # that are tried if patches seem to see other lines
MOST_STEPS = 4  # at most every fourth row of patches is looked at: patches so large that these touch are rare
LEAST = 0.4  # of that in the first image. Of patches that are 4 pixels wide and moved by one, 0.37 is left


@torch.no_grad()
def check_same_pixels(model: nn.Module, images: Tensor, anatomy: Anatomy) -> None:
    """Check that the patches of all images (B, C, H, W) are made of the pixels that those of the first are made of.

    Each pass ends at the first attention.

    Raises:
        ValueError: If those of an image are not.
    """
    if len(images) == 1:
        return
    images = images.detach()
    seen = anatomy.cells >= 0
    spreads = rearrange(torch.tensor([spread_of(image) for image in images]).to(images), "b -> b 1 1 1")
    noise = spreads * noise_like(images[0])
    before = values_of(model, images, anatomy.calls[0])

    def moves(changed: Tensor) -> Tensor:
        after = values_of(model, torch.where(changed, images + noise, images), anatomy.calls[0])
        return reduce(in_double(after - before).abs(), "b h m d -> b m", "max")[:, anatomy.patches]

    of_all = moves(seen)
    alive = (of_all > 0).double()  # a value behind a ReLU may be zero with any pixels
    for half in _halves_of_patches(anatomy.grid):
        # A norm over the whole image may move a token more by half of the pixels than by all.
        of_half = moves(seen & half.to(seen.device)[anatomy.cells.clamp(min=0)])
        shares = (of_half / of_all.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1) * alive
        half = half.to(shares.device)
        inside, outside = (
            reduce(shares[:, of], "b m -> b", "sum") / reduce(alive[:, of], "b m -> b", "sum").clamp(min=1)
            for of in (half, ~half)
        )
        apart = inside - outside
        least = ALL if apart[0] > ALL else LEAST  # patches apart from each other move with one half alone in any image
        if apart[0] > APART and (apart < least * apart[0]).any():
            raise _other_pixels_error(model, int(apart.argmin()))
    _check_seen_lines(model, images, spreads, anatomy)


def _check_seen_lines(model: nn.Module, images: Tensor, spreads: Tensor, anatomy: Anatomy) -> None:
    """Raise a ValueError if patches of an image see rows or columns of pixels that those of the first do not see.

    An image may also see fewer, where a model clips its pixels.
    """
    if not images.is_floating_point():
        return
    seen: dict[tuple[str, int, int], Tensor] = {}
    for seed in range(NOISES):  # behind a ReLU, the slopes of a line are 0 by chance
        lines = _seen_lines(model, images + spreads * noise_like(images[0], seed), anatomy)
        seen |= {key: each | seen.get(key, each) for key, each in lines.items()}
        beyond = {int(number) for each in seen.values() for number in (each & ~each[:1]).any(dim=1).nonzero()[:, 0]}
        if not beyond:
            return
    raise _other_pixels_error(model, min(beyond))


@torch.inference_mode(False)
@torch.enable_grad()
def _seen_lines(model: nn.Module, images: Tensor, anatomy: Anatomy) -> dict[tuple[str, int, int], Tensor]:
    """Return in which rows and columns of pixels every second patch, or every third or so, has slopes: (B, lines) each.

    The keys are the axis, the step from patch to patch and the first of them. Nothing is known if tokens have no
    gradients, or patches overlap too much.
    """
    images = images.clone().requires_grad_()
    with as_written():  # a checkpoint would compute again, and not end at the first attention
        values = values_of(model, images, anatomy.calls[0])
    if not values.requires_grad:
        return {}
    found: dict[tuple[str, int, int], Tensor] = {}
    for patches, pixels in (("r b (h s d)", "b c y x -> b y"), ("s b (h r d)", "b c y x -> b x")):
        tokens = rearrange(values[:, :, anatomy.patches], f"b h (r s) d -> {patches}", r=anatomy.grid[0])
        for step in range(2, min(len(tokens), MOST_STEPS) + 1):
            squares = (tokens[first::step].square().sum() for first in range(step))
            slopes = [torch.autograd.grad(each, images, retain_graph=True, allow_unused=True)[0] for each in squares]
            if any(each is None for each in slopes):
                return {}
            lines = [reduce(each != 0, pixels, "any") for each in slopes]
            if not all(each[0].all() for each in lines):  # there are gaps between these patches
                found |= {(pixels, step, first): each for first, each in enumerate(lines)}
                break
    return found


def _other_pixels_error(model: nn.Module, number: int) -> ValueError:
    return ValueError(
        f"{type(model).__name__} takes its patches from other pixels of image {number} than of the first one of the "
        "batch, as if it crops or turns images by what they show, so no map fits all: do that before the model, or "
        f"{CHOOSE_OTHERS}"
    )


def _halves_of_patches(grid: tuple[int, int]) -> Iterator[Tensor]:
    """Yield which patches are in one half, (patches,) each: by the digits of their rows, then of their columns.

    >>> [half.int().tolist() for half in _halves_of_patches((2, 2))]
    [[1, 1, 0, 0], [1, 0, 1, 0]]
    """
    rows, columns = grid
    for half in separating_halves(rows):
        yield half.repeat_interleave(columns)
    for half in separating_halves(columns):
        yield half.repeat(rows)
