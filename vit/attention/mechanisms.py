"""Attention mechanisms: how queries, keys and values become an output.

A mechanism is a module that maps q (B, H, N, d), k (B, H, M, d) and v (B, H, M, d) to (B, H, N, d).
``MECHANISMS`` names them; ``VisionTransformer(attention=NAME)`` chooses one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.attention.functional import attention_weights, scaled_dot_product_attention

# Measured on 2 CPU cores with avx512_bf16: the backward pass of the fused CPU kernel in bf16 takes 3 to 6
# times as long as explicit matrix products, up to about 4,096 keys; without gradients explicit leads up
# to about 1,024. In float32, on GPUs, and beyond these lengths the fused kernel is level or ahead.
EXPLICIT_KEYS_TRAINING = 4096
EXPLICIT_KEYS_INFERENCE = 1024


class SoftmaxAttention(nn.Module):
    """Exact softmax attention, computed by whichever kernel was measured to be faster."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, d) -> (B, H, N, d)."""
        if _explicit_is_faster(q, k):
            return scaled_dot_product_attention(q, k, v)[0]
        return F.scaled_dot_product_attention(q, k, v)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Attention of every query over every key: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(q, k)


def _explicit_is_faster(q: Tensor, k: Tensor) -> bool:
    needs_grad = torch.is_grad_enabled() and q.requires_grad
    longest = EXPLICIT_KEYS_TRAINING if needs_grad else EXPLICIT_KEYS_INFERENCE
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= longest


MECHANISMS: dict[str, type[nn.Module]] = {"softmax": SoftmaxAttention}
