"""Accuracy of a model whose attention is cut to a low rank.

Letters in the einops patterns: b batch, h heads, n queries, m keys, k dimensions that are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from einops import einsum
from torch import Tensor, nn

from vit.analysis.accuracy import is_right
from vit.analysis.batches import calls_of_layers, in_batches, labelled_batches
from vit.analysis.measures import singular_values
from vit.capture.attention import run_intercepted
from vit.support.checks import check_positive_int
from vit.support.precision import at_least_float32, in_double

WIDER = 16  # extra vectors, so that those asked for converge
FEW = 10  # the iteration is faster if there are at least this many times as many rows as vectors
ROUNDS, BETWEEN = 4, 3  # rounds at most, and multiplications in each before a look at the result
CONVERGED = 1e-9  # largest remaining error, as a share of an eigenvalue


@dataclass(frozen=True)
class RankPoint:
    """Accuracy of a model with attention of lower rank.

    Attributes:
        rank: Rank of the attention of each image, head and layer.
        accuracy: Share of images classified correctly with the best approximation of this rank.
        random_accuracy: The control: the same share with a projection to a random subspace of this dimension.
        right: Whether each image is classified correctly with the best approximation.
    """

    rank: int
    accuracy: float
    random_accuracy: float
    right: tuple[bool, ...]


def truncation_curve(
    model: nn.Module, images: Tensor, labels: Tensor, ranks: Sequence[int], *, seed: int = 0, batch_size: int = 64
) -> list[RankPoint]:
    """Cut the attention of every layer to each rank, and measure the accuracy. Nothing is trained.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> images = torch.randn(5, 3, 32, 32)
    >>> points = truncation_curve(model, images, model(images).argmax(dim=-1), ranks=[1, 17])
    >>> points[-1].accuracy, points[-1].random_accuracy  # 17 tokens: nothing is cut
    (1.0, 1.0)

    A rank equal to the number of tokens changes nothing. Each layer and head has a random subspace of its own, which
    the seed decides. For the other arguments, see ``accuracy``.

    Raises:
        ValueError: If a rank is below 1, or attention cannot be captured (see ``capture_attention``).
    """
    for rank in ranks:
        check_positive_int("ranks", rank, "rank 0 is no attention at all")

    ranks = [*dict.fromkeys(ranks)]
    right: dict[int, list[bool]] = {rank: [] for rank in ranks}
    of_random: dict[int, list[bool]] = {rank: [] for rank in ranks}
    for batch, targets in labelled_batches(model, images, labels, batch_size):
        known: list[Tensor] = []  # the attention of the first layer is the same at every rank

        def best(rank: int, layer: int, attn: Tensor, known: list[Tensor] = known) -> Tensor:
            if layer == 0 and not known:
                known.append(torch.linalg.eigh(_gram(attn)).eigenvectors)
            return truncated(attn, rank, known[0]) if layer == 0 else truncated(attn, rank)

        def random(rank: int, layer: int, attn: Tensor) -> Tensor:
            return randomly_projected(attn, rank, seed + layer)

        for cut, found in ((best, right), (random, of_random)):
            for rank in ranks:

                def edit(layer: int, attn: Tensor, rank: int = rank, cut: Callable[..., Tensor] = cut) -> Tensor:
                    return attn if attn.shape[-2] <= rank else cut(rank, layer, attn)

                found[rank] += is_right(model, batch, targets, edit, batch_size).tolist()
    return [RankPoint(rank, fmean(right[rank]), fmean(of_random[rank]), tuple(right[rank])) for rank in ranks]


@torch.no_grad()
def attention_spectra(model: nn.Module, images: Tensor, *, batch_size: int = 32) -> list[Tensor]:
    """Compute the singular values of attention as shares of their sum, largest first: (B, H, N) for each layer.

    Compare them with those of an untrained model: its attention is nearly uniform, which is of rank 1.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in attention_spectra(model, torch.randn(5, 3, 32, 32))]
    [(5, 3, 17), (5, 3, 17)]

    For the arguments, see ``accuracy``.

    Raises:
        ValueError: If there are no images, or attention cannot be captured (see ``capture_attention``).
    """
    layers: dict[int, list[Tensor]] = {}

    def keep(layer: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            values = singular_values(attn)
            layers.setdefault(layer, []).append((values / values.sum(dim=-1, keepdim=True)).cpu())
        return attn

    calls = calls_of_layers(model, images, batch_size)
    for batch in in_batches(model, images, batch_size):
        run_intercepted(model, batch, keep, calls)
    return [torch.cat(batches) for batches in layers.values()]


def truncated(attn: Tensor, rank: int, vectors: Tensor | None = None) -> Tensor:
    """Return the nearest matrix of a rank to attention: (B, H, N, M) -> (B, H, N, M) (Eckart and Young 1936).

    It is ``U U^T A``. U has the first left singular vectors, which are eigenvectors of ``A A^T``. Rows may no longer
    sum to one.

    Args:
        attn: The weights.
        rank: The rank.
        vectors: All left singular vectors, those of the largest singular values last, if they are known.
    """
    vectors = leading_vectors(_gram(attn), rank) if vectors is None else vectors[..., -rank:]
    wide = at_least_float32(attn)  # only the vectors need double precision
    vectors = vectors.to(wide)
    coordinates = einsum(vectors, wide, "b h n k, b h n m -> b h k m")
    return einsum(vectors, coordinates, "b h n k, b h k m -> b h n m").to(attn)


def leading_vectors(matrices: Tensor, count: int) -> Tensor:
    """Return the eigenvectors of the largest eigenvalues: symmetric (..., N, N) -> (..., N, count), the largest last.

    For few of many vectors, repeated multiplication takes a third of the time of all eigenvectors (subspace iteration;
    Halko et al. 2011). If it does not converge to ``CONVERGED`` for a matrix, all its eigenvectors are computed.
    """
    size, width = matrices.shape[-1], count + WIDER
    if FEW * width > size:
        return torch.linalg.eigh(matrices).eigenvectors[..., -count:]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, width, generator=generator, dtype=matrices.dtype).to(matrices.device)
    vectors = matrices @ start
    for _ in range(ROUNDS):
        for _ in range(BETWEEN):
            vectors = matrices @ torch.linalg.qr(vectors).Q
        basis = torch.linalg.qr(vectors).Q
        multiplied = matrices @ basis
        values, mixing = torch.linalg.eigh(basis.mT @ multiplied)
        values, mixing = values[..., None, -count:], mixing[..., -count:]
        left = (multiplied @ mixing - basis @ mixing * values).norm(dim=-2, keepdim=True)
        converged = (left <= CONVERGED * values).all(dim=-1)[..., 0]
        if converged.all():
            break
        vectors = multiplied
    found = basis @ mixing
    if not converged.all():
        found[~converged] = torch.linalg.eigh(matrices[~converged]).eigenvectors[..., -count:]
    return found


def _gram(attn: Tensor) -> Tensor:
    wide = in_double(attn)
    return wide @ wide.mT


def randomly_projected(attn: Tensor, rank: int, seed: int) -> Tensor:
    """Project attention to a random subspace of the queries, one for each head: (B, H, N, M) -> (B, H, N, M)."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(attn.shape[1], attn.shape[2], rank, generator=generator, dtype=torch.float64)
    wide = at_least_float32(attn)
    basis = torch.linalg.qr(directions).Q.to(wide)
    coordinates = einsum(basis, wide, "h n k, b h n m -> b h k m")
    return einsum(basis, coordinates, "h n k, b h k m -> b h n m").to(attn)
