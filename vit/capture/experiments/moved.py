"""Changes images, and tells which copies of an image changed, and which differ by rounding alone."""

import torch
from einops import reduce
from torch import Tensor, nn

from vit.capture.parts.logits import result_of
from vit.support.precision import in_double

UNITS = {torch.float64: 16, torch.float32: 16}  # of rounding of the largest value
COARSE = 4  # the same for types with fewer bits
MARGIN = 10  # times the rounding that was measured
ALIKE = 0.01  # of the standard deviation of the pixels: images that differ by less show too little
LITTLE = 1e-5  # of what another image moves: more is no rounding. A sum near 0 rounds by more than its own size


def changes(copies: Tensor) -> Tensor:
    """Return how much each copy differs from the first: (K, ...) -> (K - 1, ...)."""
    return (copies[1:] - copies[:1]).detach().abs()


def rounding(copies: Tensor) -> float:
    """Return the largest difference from the first copy that may be rounding: (K, ...), the last copy unchanged too.

    The first and the last copy differ by rounding alone, because kernels add up the rows of a batch in another order at
    its end. Rounding may be ``MARGIN`` times that, or a few units of the type: 2e-6 of the largest value in float32,
    4e-15 in float64.
    """
    first, last = copies[0].detach(), copies[-1].detach()
    units = UNITS.get(copies.dtype, COARSE) * torch.finfo(copies.dtype).eps
    return max(units * float(first.abs().max()), MARGIN * float((last - first).abs().max()))


def are_equal(logits: Tensor, usual: Tensor) -> bool:
    """Return whether logits (K, classes) are equal up to rounding, which the last, equal to the first, measures.

    ``usual`` is how much another image moves each logit, (classes,).
    """
    if not logits.numel():
        return True
    measured = MARGIN * (logits[-1] - logits[0]).detach().abs().max()
    allowed = torch.maximum(units_of(logits[0].detach().abs(), usual), LITTLE * usual).clamp(min=measured)
    return bool((changes(logits) <= allowed).all())


def units_of(sizes: Tensor, usual: Tensor) -> Tensor:
    """Return what a few units of the type are in logits of these sizes, (classes,) twice -> (classes,).

    A logit near 0 is a sum of terms as large as those of others, so it rounds like the median logit. A class that no
    image moves, such as one that is masked by -1e9, does not count for the others.
    """
    units = UNITS.get(sizes.dtype, COARSE) * torch.finfo(sizes.dtype).eps
    moving = sizes[usual > 0] if usual.any() else sizes
    return units * sizes.clamp(min=moving.median())


def usual_changes(logits: Tensor) -> Tensor:
    """Return how much images move each logit, at least as much as the median of those that move: (B, C) -> (C,).

    By this scale logits are compared, and not by their size: an offset or a masked class may be far larger than all
    that an image moves.
    """
    if len(logits) < 2 or not logits.numel():
        return logits.new_zeros(logits.shape[1:])
    moved = changes(logits).amax(dim=0)
    moving = moved[moved > 0]
    return moved.clamp(min=moving.median()) if moving.numel() else moved


def differentiable(images: Tensor) -> Tensor:
    """Return images that autograd accepts. Images made in inference mode are copied."""
    if not images.is_inference():
        return images
    with torch.inference_mode(False):
        return images.clone()


def two_of(images: Tensor) -> Tensor:
    """Return the first of images (B, C, H, W), and the next one that differs from it, or else a changed copy.

    Equal images do not show what a model reads, and a mere mirror image has the same mean. A copy stays within the
    range of the pixels, unless all are equal.
    """
    images = differentiable(images)
    first, others = images[:1], differing(images).nonzero()[:, 0]
    if len(others):
        return torch.cat([first, images[others[:1]]])
    if not first.is_floating_point():
        return torch.cat([first, first.flip(-1)])
    changed = 0.75 * first.flip(-1) + 0.25 * spread_of(first) * noise_like(first)
    low, high = first.aminmax()
    return torch.cat([first, changed.clamp(low, high) if low < high else changed])


def differing(images: Tensor) -> Tensor:
    """Return which images differ from the first one by more than another decoder or resampling would change, (B,).

    >>> differing(torch.tensor([0.0, 1.0, 0.0, 1.001, 0.0, 2.0]).reshape(3, 1, 1, 2))
    tensor([False, False,  True])
    """
    changes = in_double(images) - in_double(images[:1])
    return reduce(changes.abs(), "b ... -> b", "max") > ALIKE * spread_of(images[:1])


@torch.no_grad()
def moved_by_images(model: nn.Module, images: Tensor) -> Tensor:
    """Return how much images (B, C, H, W) move each logit, (classes,), as ``usual_changes`` does."""
    return usual_changes(result_of(model(images)))


def spread_of(image: Tensor) -> float:
    """Return the standard deviation of the pixels of an image; 1 if all are equal.

    >>> spread_of(torch.tensor([0.0, 2.0])), spread_of(torch.full((3,), 0.1, dtype=torch.float64))
    (1.4142135623730951, 1.0)
    """
    # The mean of equal numbers may be another one by rounding.
    return in_double(image).std().item() if image.numel() > 1 and (image != image.flatten()[0]).any() else 1.0


def noise_like(image: Tensor, seed: int = 0) -> Tensor:
    """Return standard normal noise of the shape of an image, the same at each call."""
    return torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)).to(image)
