"""Convolution as attention: fixed offsets, and weights that do not depend on the image.

Letters in the einops patterns: h heads, y x rows and columns of the patches that attend, v u those of the patches
attended to.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.attention.functional import attention_logits, shifted_sum
from vit.attention.mechanisms.grid import Grid, check_odd, prefix_length
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.qkv_checks import check_qkv


class ConvolutionAttention(Mechanism):
    """Attention of each patch to the ``kernel`` x ``kernel`` patches around it, by learned weights of their offsets.

    Each head has one weight for each offset, the same for all images; values beyond the border are zero. Nine heads,
    each with the weight 1 at another offset, are a 3 x 3 convolution (Cordonnier et al. 2020, theorem 1). A prefix
    token (class token, register) gets the mean of all tokens. Patches do not see it, so information moves by no more
    than half a kernel per block. Queries and keys are projected but not used, so that the model has the same size as
    with softmax attention. Weights may be negative, and rows need not sum to one.

    Args:
        kernel: Patches along a side of the neighbourhood, an odd number.
    """

    rotated_parts: ClassVar[int] = 0

    def __init__(self, num_heads: int, kernel: int = 3) -> None:
        super().__init__()
        check_odd("kernel", kernel)
        self.kernel = nn.Parameter(torch.empty(num_heads, kernel, kernel))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the weights, normal, so that the variance of the values is kept."""
        nn.init.normal_(self.kernel, std=1 / self.kernel.shape[-1])

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, N, d), (B, H, N, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        prefix = prefix_length("ConvolutionAttention", q, k, grid)
        patches = shifted_sum(v[..., prefix:, :], self.kernel.to(v.dtype), grid)
        return torch.cat([*[v.mean(dim=-2, keepdim=True)] * prefix, patches], dim=-2)

    def weights(self, q: Tensor, k: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Compute the weights, equal for all images: (B, H, N, d), (B, H, N, d) -> (B, H, N, N)."""
        prefix = prefix_length("ConvolutionAttention", q, k, grid)
        down, right = (self._offsets(size) for size in grid)
        with_zero = F.pad(self.kernel, (0, 1, 0, 1))
        among_patches = with_zero[:, rearrange(down, "y v -> y 1 v 1"), rearrange(right, "x u -> 1 x 1 u")]
        of_patches = F.pad(rearrange(among_patches, "h y x v u -> h (y x) (v u)"), (prefix, 0))
        tokens = of_patches.shape[-1]
        of_prefix = of_patches.new_full((len(of_patches), prefix, tokens), 1 / tokens)
        # The products are scaled by 0, but keep the weights in the autograd graph of the tokens. From this graph
        # vit.capture tells whether layers follow each other or lie side by side.
        return attention_logits(q, k, scale=0.0) + torch.cat([of_prefix, of_patches], dim=1).to(q.dtype)

    def _offsets(self, size: int) -> Tensor:
        """Return the index in the padded kernel of the offset from each position (row) to each other (column)."""
        kernel = self.kernel.shape[-1]
        positions = torch.arange(size, device=self.kernel.device)
        offsets = positions - rearrange(positions, "y -> y 1") + kernel // 2
        return torch.where((offsets >= 0) & (offsets < kernel), offsets, kernel)
