"""Measures of attention: pure functions of the weights of heads.

``grid`` is rows and columns of patches, ``num_prefix_tokens`` the number of tokens before the patches, and
``patch_size`` the height and width of a patch in pixels. Letters in the einops patterns: b batch, h heads, n queries,
m keys, k pairs of query and key, g heads again.
"""

import math

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.support.precision import in_double

Grid = tuple[int, int]


def attention_distance(
    attn: Tensor, grid: Grid, patch_size: tuple[float, float], num_prefix_tokens: int = 0, renormalise: bool = True
) -> Tensor:
    """Compute the mean attention distance in pixels: (B, H, N, N) -> (B, H), the mean over querying patches.

    The distance is ``sum_j A_ij d_ij / sum_j A_ij`` over the patches j; d is the distance between patch centres
    (Dosovitskiy et al. 2021, fig. 7). If ``renormalise`` is False, there is no denominator, as in public code. A head
    whose patches attend to the class token then looks local. A patch that attends to no patch counts as 0.

    >>> attention_distance(torch.full((1, 1, 2, 2), 0.5), grid=(1, 2), patch_size=(8, 8))
    tensor([[4.]])
    """
    between = _between_patches(attn, grid, num_prefix_tokens)
    pixels = einsum(between, pair_distances(grid, patch_size).to(attn), "b h n m, n m -> b h n")
    if renormalise:
        pixels = pixels / reduce(between, "b h n m -> b h n", "sum").clamp(min=torch.finfo(attn.dtype).tiny)
    return reduce(pixels, "b h n -> b h", "mean")


def pair_distances(grid: Grid, patch_size: tuple[float, float]) -> Tensor:
    """Compute the distance between the centres of any two patches, in pixels: (patches, patches)."""
    rows, columns = (size * torch.arange(float(count)) for count, size in zip(grid, patch_size, strict=True))
    places = torch.cartesian_prod(rows, columns)
    # A matrix product is faster, but rounds: the distance of a patch to itself would not be 0.
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def uniform_distance(grid: Grid, patch_size: tuple[float, float]) -> float:
    """Compute the attention distance of uniform attention, in pixels. On a large square it is 0.52 sides.

    >>> round(uniform_distance((14, 14), (16, 16)), 1)
    116.5
    """
    return pair_distances(grid, patch_size).mean().item()


def attention_entropy(attn: Tensor) -> Tensor:
    """Compute the entropy of attention: (B, H, N, M) -> (B, H), from 0 for a single key to 1 for uniform weights.

    The entropy is ``-sum_j A_ij ln A_ij / ln M``, averaged over the queries.

    >>> attention_entropy(torch.full((1, 1, 1, 7), 1 / 7)).round(decimals=4)
    tensor([[1.]])
    """
    entropy = reduce(torch.special.entr(attn), "b h n m -> b h n", "sum")
    largest = math.log(max(2, attn.shape[-1]))  # of a single key, the entropy is 0
    return reduce(entropy / largest, "b h n -> b h", "mean")


def confidence(attn: Tensor) -> Tensor:
    """Compute the largest weight of each query, averaged over queries: (B, H, N, M) -> (B, H)."""
    return reduce(attn.amax(dim=-1), "b h n -> b h", "mean")


def self_mass(attn: Tensor) -> Tensor:
    """Compute the attention of each token to itself, averaged over tokens: (B, H, N, N) -> (B, H)."""
    return reduce(attn.diagonal(dim1=-2, dim2=-1), "b h n -> b h", "mean")


def prefix_mass(attn: Tensor, grid: Grid, num_prefix_tokens: int = 0) -> Tensor:
    """Sum the attention of each token to non-patch tokens: (B, H, N, N) -> (B, H, N)."""
    patches = _patches(grid, num_prefix_tokens)
    others = torch.cat([attn[..., : patches.start], attn[..., patches.stop :]], dim=-1)
    return reduce(others, "b h n m -> b h n", "sum")


def column_mass(attn: Tensor) -> Tensor:
    """Compute the attention that each key gets, ``M mean_i A_ij``: (B, H, N, M) -> (B, H, M), 1 if uniform."""
    return attn.shape[-1] * reduce(attn, "b h n m -> b h m", "mean")


def sink_score(attn: Tensor) -> Tensor:
    """Compute the ``column_mass`` of the most attended key: (B, H, N, M) -> (B, H), from 1 (uniform) to M (one key)."""
    return column_mass(attn).amax(dim=-1)


def positional_score(mean: Tensor, mean_square: Tensor, num_images: int) -> Tensor:
    """Compute the share of attention that is the same for all images: (H, N, N), (H,) -> (H,).

    The share is ``1 - E ||A - mean||^2 / E ||A||^2``: 1 if attention is the same for every image, 0 if it depends on
    content only. ``mean_square`` is the mean of ``||A||^2``, a sum over queries and keys. The variance is unbiased and
    needs at least 2 images. With few images, the biased variance would make any head look positional.
    """
    same = reduce(mean.square(), "h n m -> h", "sum") / mean_square
    return 1 - (1 - same) * num_images / (num_images - 1)


def follow_score(attn: Tensor, moved: Tensor, grid: Grid, num_prefix_tokens: int, shift: tuple[int, int]) -> Tensor:
    """Compute how far attention moves along with moved images: (B, H, N, N) twice -> (B, H), 1 if it does so entirely.

    ``moved`` is the attention on the same images, rolled by ``shift`` patches down and to the right. If a head looks
    for content, the weight between two patches goes with them to their new places. If it looks at places, the weight
    stays. What is the same for all images says nothing, so the difference of each image from another one of the batch
    is taken. The score is the cosine between the differences before the move, taken to the new places, and after it.
    For a single image it is 0.

    >>> attn = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.3, 0.7], [0.3, 0.7]]])[:, None]
    >>> follow_score(attn, attn.flip(-1), (1, 2), 0, (0, 1)).mean().round(decimals=4), "follows its patch"
    (tensor(1.), 'follows its patch')
    """
    rows, columns = grid
    numbers = rearrange(torch.arange(rows * columns), "(y x) -> y x", y=rows)
    came_from = rearrange(numbers.roll(shift, dims=(0, 1)), "y x -> (y x)").to(attn.device)
    before, after = (_between_patches(x, grid, num_prefix_tokens) for x in (attn, moved))
    before = before[..., came_from, :][..., came_from]
    before, after = (rearrange(x - x.roll(1, dims=0), "b h n m -> b h (n m)") for x in (before, after))
    size = (before.norm(dim=-1) * after.norm(dim=-1)).clamp(min=torch.finfo(attn.dtype).tiny)
    return einsum(before, after, "b h k, b h k -> b h") / size


def offset_counts(attn: Tensor, grid: Grid, num_prefix_tokens: int = 0) -> Tensor:
    """Count the offsets from each querying patch to its most attended patch: (B, H, N, N) -> (H, 2r-1, 2c-1).

    Offset (0, 0), the patch itself, is in the middle. Rows of the result count down, columns to the right.
    """
    queries = torch.arange(grid[0] * grid[1], device=attn.device)
    keys = _between_patches(attn, grid, num_prefix_tokens).argmax(dim=-1)
    offsets = rearrange(_offset_indices(grid).to(attn.device)[queries, keys], "b h n -> h (b n)")
    height, width = 2 * grid[0] - 1, 2 * grid[1] - 1
    counts = torch.stack([torch.bincount(of_head, minlength=height * width) for of_head in offsets])
    return rearrange(counts, "h (height width) -> h height width", height=height)


def offset_score(counts: Tensor, grid: Grid) -> tuple[Tensor, list[tuple[int, int]]]:
    """Find the frequency of the most frequent offset and the offset: (H, 2r-1, 2c-1) -> (H,), list of (down, right).

    The frequency is a share of the patches that have a patch at this offset. For example, patches in the left column
    have no left neighbour. An offset does not count if fewer than half of the patches have it. Heads above 0.9 are
    positional (Voita et al. 2019, sec. 5.2).
    """
    patches = grid[0] * grid[1]
    having = _pairs_at_offset(grid).to(counts.device)
    images = reduce(counts, "h height width -> h 1 1", "sum") / patches
    shares = (counts / (having * images)).masked_fill(having < patches / 2, 0.0)
    score, index = rearrange(shares, "h height width -> h (height width)").max(dim=-1)
    width = 2 * grid[1] - 1
    return score, [(i // width - grid[0] + 1, i % width - grid[1] + 1) for i in index.tolist()]


def offset_map(mean: Tensor, grid: Grid, num_prefix_tokens: int = 0) -> Tensor:
    """Compute the mean attention to the patch at each offset: (H, N, N) -> (H, 2r-1, 2c-1), 1 if uniform."""
    index = rearrange(_offset_indices(grid), "n m -> (n m)").to(mean.device)
    weights = rearrange(_between_patches(mean, grid, num_prefix_tokens), "h n m -> h (n m)")
    having = _pairs_at_offset(grid).to(mean)
    sums = torch.zeros(len(mean), having.numel()).to(mean).index_add_(1, index, weights)
    return mean.shape[-1] * rearrange(sums, "h (height width) -> h height width", height=len(having)) / having


def singular_values(matrices: Tensor) -> Tensor:
    """Compute singular values in double precision, largest first: (..., N, M) -> (..., N).

    They are the square roots of the eigenvalues of ``A A^T``, exact to 1e-8 of the largest. For a batch of attention
    with 65 tokens, this was a hundred times faster than ``torch.linalg.svdvals``.
    """
    wide = in_double(matrices)
    eigenvalues = torch.linalg.eigvalsh(wide @ wide.mT)
    return eigenvalues.clamp(min=0.0).sqrt().flip(-1)


def effective_rank(singular_values: Tensor) -> Tensor:
    """Compute the effective rank of a matrix from its singular values: (..., K) -> (...), from 1 to K.

    It is ``exp(-sum_k p_k ln p_k)`` with ``p = s / sum(s)`` (Roy and Vetterli 2007). The plain rank says nothing: the
    output of a softmax numerically has full rank.

    >>> effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])).round(decimals=4)
    tensor(3.)
    """
    shares = singular_values / singular_values.sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).exp()


def stable_rank(singular_values: Tensor) -> Tensor:
    """Compute ``sum_k s_k^2 / max_k s_k^2``: (..., K) -> (...). Small singular values hardly count."""
    squares = singular_values.square()
    return squares.sum(dim=-1) / squares.amax(dim=-1)


def redundancy(means: Tensor) -> Tensor:
    """Compute the largest cosine of each head's mean attention with another head's: (H, N, N) -> (H,), NaN if H = 1."""
    if len(means) == 1:
        return torch.full((1,), torch.nan)
    directions = torch.nn.functional.normalize(rearrange(means, "h n m -> h (n m)"), dim=-1)
    cosines = einsum(directions, directions, "h k, g k -> h g")
    return cosines.fill_diagonal_(-torch.inf).amax(dim=-1)


def _patches(grid: Grid, num_prefix_tokens: int) -> slice:
    return slice(num_prefix_tokens, num_prefix_tokens + grid[0] * grid[1])


def _between_patches(attn: Tensor, grid: Grid, num_prefix_tokens: int) -> Tensor:
    patches = _patches(grid, num_prefix_tokens)
    if attn.shape[-1] < patches.stop:
        raise ValueError(
            f"attention of shape {tuple(attn.shape)} is too small for {num_prefix_tokens} prefix tokens and a grid of "
            f"{grid[0]} x {grid[1]} patches: give the grid and num_prefix_tokens of the model"
        )
    return attn[..., patches, patches]


def _offset_indices(grid: Grid) -> Tensor:
    """Return the index of each pair of query and key in a flat map of offsets: (patches, patches)."""
    rows, columns = torch.cartesian_prod(*(torch.arange(count) for count in grid)).T
    down, right = (axis[None] - axis[:, None] + count - 1 for axis, count in zip((rows, columns), grid, strict=True))
    return down * (2 * grid[1] - 1) + right


def _pairs_at_offset(grid: Grid) -> Tensor:
    """Count the patches that have a patch at each offset: (2r-1, 2c-1)."""
    down, right = (count - torch.arange(1 - count, count).abs() for count in grid)
    return down[:, None] * right
