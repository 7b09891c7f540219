"""Principal components of features, with signs and colours that do not change from run to run.

Letters in the einops patterns: n vectors of all images together, d channels, k components.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.features.finite import check_finite
from vit.support.checks import check_positive_int

MARGIN = 0.01  # share of the scores that is clipped at each end, so that outliers do not set the scale


class Principal(NamedTuple):
    """Principal components of a set of vectors, largest variance first.

    Attributes:
        scores: Coordinates of the vectors along the components, (..., K).
        components: Directions of unit length, (K, D). The entry that is largest in absolute value is positive.
        mean: Mean of all vectors, (D,). Other vectors x have the scores ``(x - mean) @ components.T``.
        explained: Share of the total variance along each component, (K,).
    """

    scores: Tensor
    components: Tensor
    mean: Tensor
    explained: Tensor


@torch.no_grad()
def pca(features: Tensor, components: int = 3) -> Principal:
    """Compute principal components over all vectors of all images: (N, D) -> (N, K), (B, N, D) -> (B, N, K).

    The B images share mean and components, so equal scores mean the same in every image. A component and its negative
    are equally good; the one whose largest absolute entry is positive is taken, so a picture keeps its colours.

    >>> points = torch.tensor([[2.0, 2.0, 7.0], [-2.0, -2.0, 7.0], [1.0, -1.0, 7.0], [-1.0, 1.0, 7.0]])
    >>> found = pca(points, components=2)
    >>> found.scores[:2, 0].tolist(), found.mean.tolist()  # along the diagonal of the first two channels
    ([2.8284270763397217, -2.8284270763397217], [0.0, 0.0, 7.0])
    >>> pca(torch.randn(5, 64, 384)).scores.shape
    torch.Size([5, 64, 3])

    Args:
        features: Vectors, such as the patch tokens of one image or of several.
        components: Number of components K.

    Raises:
        ValueError: If features have another shape or are not finite, or there are too few vectors or channels.
    """
    check_positive_int("components", components, "3 are usual, for red, green and blue")
    if features.ndim not in (2, 3):
        raise ValueError(f"features have shape {tuple(features.shape)}: give (N, D), or (B, N, D) for B images")
    vectors = rearrange(features, "... d -> (...) d")
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    most = min(len(vectors) - 1, vectors.shape[1])
    if components > most:
        raise ValueError(
            f"{len(vectors)} vectors of {vectors.shape[1]} channels have at most {max(most, 0)} components, and "
            f"{components} are asked for: give more vectors, or ask for fewer"
        )
    check_finite(vectors)
    mean = reduce(vectors, "n d -> d", "mean")
    _, spread, directions = torch.linalg.svd(vectors - mean, full_matrices=False)
    chosen = directions[:components]
    largest = chosen.gather(1, chosen.abs().argmax(dim=1, keepdim=True))
    chosen = torch.where(largest < 0, -chosen, chosen)
    variance = spread.square()
    total = variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
    scores = einsum((features.to(mean) - mean), chosen, "... d, k d -> ... k")
    return Principal(scores, chosen, mean, variance[:components] / total)


def as_colours(scores: Tensor, margin: float = MARGIN) -> Tensor:
    """Scale scores to [0, 1] for display, each component over all images at once: (..., K) -> (..., K).

    With three components the result is red, green and blue. Equal scores get equal colours in all images; with a scale
    per image, the same thing would have different colours in two images.

    >>> as_colours(torch.tensor([[[0.0], [1.0]], [[2.0], [4.0]]]), margin=0).squeeze(-1)
    tensor([[0.0000, 0.2500],
            [0.5000, 1.0000]])

    Args:
        scores: Scores of ``pca``.
        margin: Share of the lowest and of the highest scores that all become 0, or 1.

    Raises:
        ValueError: If the margin is not from 0 to less than 1/2.
    """
    if not 0 <= margin < 0.5:
        raise ValueError(f"margin ({margin}) must be at least 0 and less than 0.5: 0.01 is usual")
    flat = rearrange(scores, "... k -> (...) k")
    ordered = flat.sort(dim=0).values
    skipped = int(margin * len(flat))
    low, high = ordered[skipped], ordered[len(flat) - 1 - skipped]
    span = (high - low).clamp(min=torch.finfo(scores.dtype).tiny)
    return ((scores - low) / span).clamp(0, 1)
