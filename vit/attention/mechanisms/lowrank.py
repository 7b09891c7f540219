"""Attention through a few landmarks instead of all keys, in time and memory that grow with N.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head, r s landmarks,
y x rows and columns of the grid.
"""

from functools import partial

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.float32 import in_float32
from vit.attention.mechanisms.grid import Grid, prefix_length
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.mechanisms.softmax_kernels import attend
from vit.attention.qkv_checks import check_qkv
from vit.support.checks import check_positive_int


class NystromAttention(Mechanism):
    """Softmax attention, approximated from its rows and columns at a few landmarks (Xiong et al. 2021, Nystromformer).

    ``softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v``, where the landmarks q~ and k~ are means of consecutive
    queries and keys. With at least as many landmarks as tokens it computes exact softmax attention. Otherwise, products
    are computed in float32 or wider.

    Args:
        landmarks: Number of landmarks among the queries, and among the keys.
        iterations: Iterations of the pseudo-inverse. If attention is nearly uniform, the matrix is nearly singular,
            and more iterations amplify its noise: a training that worked with 6 failed with 20.
    """

    def __init__(self, landmarks: int = 16, iterations: int = 6) -> None:
        super().__init__()
        for name, value in (("landmarks", landmarks), ("iterations", iterations)):
            check_positive_int(name, value)
        self.landmarks = landmarks
        self.iterations = iterations

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        if self.landmarks >= min(q.shape[-2], k.shape[-2]):
            return attend(q, k, v)
        return in_float32(partial(nystrom, landmarks=self.landmarks, iterations=self.iterations), q, k, v)


class LinformerAttention(Mechanism):
    """Softmax attention to learned mixtures of the patches (Wang et al. 2020, Linformer).

    ``softmax(q (E k)^T) F v``, where E and F, the same for all heads, mix the N patches into ``landmarks``. Both have
    the shape of the model's grid, and are resized bilinearly for images of another size. Prefix tokens are not mixed.

    Args:
        landmarks: Number of mixtures.
    """

    def __init__(self, grid_size: Grid, landmarks: int = 16) -> None:
        super().__init__()
        check_positive_int("landmarks", landmarks)
        if grid_size is None:
            raise ValueError("linformer mixes the patches of a grid: pass grid_size=(rows, columns)")
        self.k_mixture = nn.Parameter(torch.empty(landmarks, *grid_size))
        self.v_mixture = nn.Parameter(torch.empty(landmarks, *grid_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the mixtures, normal with the variance of a mean over the patches."""
        for mixture in (self.k_mixture, self.v_mixture):
            nn.init.normal_(mixture, std=mixture[0].numel() ** -0.5)

    def no_weight_decay(self) -> set[str]:
        """Return no names: each mixture is a matrix, whose columns are laid out as the grid of patches."""
        return set()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, N, d), (B, H, N, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        prefix = prefix_length("LinformerAttention", q, k, grid)
        return attend(q, _mixed(k, self.k_mixture, prefix, grid), _mixed(v, self.v_mixture, prefix, grid))


def nystrom(q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int) -> Tensor:
    """Attend through the means of segments: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
    q_landmarks, k_landmarks = segment_means(q, landmarks), segment_means(k, landmarks)
    inverse = pseudo_inverse(attention_weights(q_landmarks, k_landmarks), iterations)
    gathered = attend(q_landmarks, k, v)
    spread = einsum(attention_weights(q, k_landmarks), inverse, "b h n r, b h r s -> b h n s")
    return einsum(spread, gathered, "b h n s, b h s d -> b h n d")


def segment_means(x: Tensor, segments: int) -> Tensor:
    """Average consecutive tokens, in segments of about equal length: (B, H, N, d) -> (B, H, segments, d)."""
    means = F.adaptive_avg_pool1d(rearrange(x, "b h n d -> (b h) d n"), segments)
    return rearrange(means, "(b h) d s -> b h s d", h=x.shape[1])


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Approximate the Moore-Penrose inverse of square matrices by matrix products: (B, H, r, r) -> (B, H, r, r).

    Near the solution, each iteration triples the number of correct digits (Razavi et al. 2014; Xiong et al. 2021,
    eq. 11).
    """
    size = matrix.abs()
    inverse = matrix.mT / (size.sum(-1).amax(-1) * size.sum(-2).amax(-1))[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def _mixed(x: Tensor, mixture: Tensor, prefix: int, grid: Grid) -> Tensor:
    """Mix the patches, and keep the prefix: (B, H, N, d) -> (B, H, prefix + landmarks, d)."""
    trained_on = mixture.shape[-2:]
    if tuple(trained_on) != tuple(grid):
        wide = mixture.to(torch.promote_types(mixture.dtype, torch.float32))  # torch resizes nothing narrower
        resized = F.interpolate(wide[None], size=grid, mode="bilinear", align_corners=False, antialias=True)[0]
        # The sum of a mixture's weights stays the same.
        mixture = resized * (trained_on[0] * trained_on[1]) / (grid[0] * grid[1])
    patches = rearrange(x[..., prefix:, :], "b h (y x) d -> b h y x d", y=grid[0])
    mixtures = einsum(mixture.to(x.dtype), patches, "r y x, b h y x d -> b h r d")
    return torch.cat([x[..., :prefix, :], mixtures], dim=-2)
