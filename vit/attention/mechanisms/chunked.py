"""Exact softmax attention in memory that grows with N instead of N x N.

Letters in the einops patterns: b batch, n queries, m keys of a chunk, h heads, d channels per head.
"""

from typing import Any

import torch
from einops import einsum
from torch import Tensor

from vit.attention.functional import attention_logits
from vit.attention.masks import check_mask, softmax_mask
from vit.attention.mechanisms.softmax import SoftmaxAttention
from vit.attention.qkv_checks import check_has_keys, check_qkv
from vit.support.checks import check_positive_int


class ChunkedAttention(SoftmaxAttention):
    """Softmax attention that processes the keys in chunks (Rabe and Staats 2021; Dao et al. 2022).

    The softmax is computed online: a larger logit rescales the earlier sums. The backward pass computes the weights
    of each chunk again, so neither pass holds more than N x ``chunk`` of them. This is the algorithm of the fused
    kernels in readable form; ``softmax`` runs those kernels, and is faster.

    The custom backward pass supports ``torch.func.vmap``, and gradients of gradients, which take memory for N x M.

    Args:
        chunk: Number of keys in a chunk.
    """

    def __init__(self, chunk: int = 64) -> None:
        super().__init__()
        check_positive_int("chunk", chunk)
        self.chunk = chunk
        # Otherwise torch.compile in torch 2.11 traces the backward pass, and passes zeros to it. Called here, not at
        # import, as it loads the compiler.
        torch.compiler.allow_in_graph(_Chunked)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        check_has_keys(q, k)
        if mask is not None:
            shape = *q.shape[:3], k.shape[2]
            check_mask(mask, shape, q.device)
            # Only floats: a boolean mask is not expanded to the N x M of the causal mask.
            mask = mask if mask.dtype == torch.bool else softmax_mask(mask, causal, shape, q.device)
        return _Chunked.apply(q, k, v, mask, causal, self.chunk)[0]


class _Chunked(torch.autograd.Function):
    """Attention, and the log of each query's sum of exponentials, which the backward pass needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, chunk: int
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        largest = torch.full_like(q[..., :1], -torch.inf, dtype=wide)
        total = torch.zeros_like(largest)
        output = torch.zeros_like(q[..., :1] * v[..., :1, :], dtype=wide)
        for start in range(0, k.shape[-2], chunk):
            keys = slice(start, start + chunk)
            logits = _chunk_logits(q, k, mask, causal, keys).to(wide)
            # Clamped, as infinity minus infinity would be NaN if all keys so far are masked.
            new_largest = torch.maximum(largest, logits.amax(-1, keepdim=True)).clamp(min=torch.finfo(wide).min)
            exponentials = (logits - new_largest).exp()
            rescale = (largest - new_largest).exp()
            total = total * rescale + exponentials.sum(-1, keepdim=True)
            output = output * rescale + einsum(exponentials.to(v.dtype), v[..., keys, :], "b h n m, b h m d -> b h n d")
            largest = new_largest
        all_masked = total == 0
        log_total = (largest + total.log()).masked_fill(all_masked, 0.0)
        return (output / total.masked_fill(all_masked, 1.0)).to(v.dtype), log_total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        q, k, v, mask, ctx.causal, ctx.chunk = inputs
        output, log_total = outputs
        if mask is not None and mask.requires_grad:
            raise ValueError("chunked attention gives no gradient to a mask: detach it, or use attention 'softmax'")
        ctx.save_for_backward(q, k, v, mask, output, log_total)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_log_total: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, output, log_total = ctx.saved_tensors
        # The gradient of the softmax needs sum_m weights * grad_weights, which equals sum_d output * grad_output.
        mean_grad = (output * grad_output).to(log_total.dtype).sum(-1, keepdim=True)
        # log_total has a gradient only where this pass is differentiated; its derivative by a logit is the weight.
        mean_grad = mean_grad - grad_log_total
        # Filled in place: small results between large temporaries would fragment the allocator's memory until the
        # process grows with N x N. The products make the gradients batched under vmap, whichever input is.
        grad_q, grad_k, grad_v = (torch.zeros_like(x * mean_grad[..., :1, :]) for x in (q, k, v))
        for start in range(0, k.shape[-2], ctx.chunk):
            keys = slice(start, start + ctx.chunk)
            weights = (_chunk_logits(q, k, mask, ctx.causal, keys) - log_total).exp()
            grad_v[..., keys, :] = einsum(weights.to(v.dtype), grad_output, "b h n m, b h n d -> b h m d")
            grad_logits = _grad_logits(weights, grad_output, v[..., keys, :], mean_grad).to(q.dtype)
            grad_q += einsum(grad_logits, k[..., keys, :], "b h n m, b h m d -> b h n d")
            grad_k[..., keys, :] = einsum(grad_logits, q, "b h n m, b h n d -> b h m d")
            del weights, grad_logits  # freed before the next ones are allocated
        scale = q.shape[-1] ** -0.5
        return scale * grad_q, scale * grad_k, grad_v, None, None, None


def _grad_logits(weights: Tensor, grad_output: Tensor, v: Tensor, mean_grad: Tensor) -> Tensor:
    grad_weights = einsum(grad_output, v, "b h n d, b h m d -> b h n m")
    return weights * (grad_weights - mean_grad)


def _chunk_logits(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, keys: slice) -> Tensor:
    logits = attention_logits(q, k[..., keys, :])
    n, m = q.shape[-2], k.shape[-2]
    if mask is not None:
        mask = mask.expand(*mask.shape[:-1], m)[..., keys]
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask.to(logits.dtype)
    if causal:
        queries, past = torch.arange(m - n, m, device=q.device), torch.arange(m, device=q.device)[keys]
        logits = logits.masked_fill(past > queries[:, None], -torch.inf)
    return logits
