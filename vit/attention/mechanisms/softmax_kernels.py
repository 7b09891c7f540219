"""Softmax attention by the kernel that was measured to be the fastest for device, dtype and length."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.attention.functional import scaled_dot_product_attention
from vit.attention.masks import softmax_mask
from vit.attention.qkv_checks import check_qkv

# Measured in bf16 on 2 CPU cores with avx512_bf16: the backward pass of the fused CPU kernel takes 3 to 6 times as long
# as explicit matrix products up to about 4,096 keys. Without gradients, the kernel takes up to 2.5 times as long as
# explicit products in parts. Products that cannot be in parts, as under torch.compile, are faster up to about 1,024
# keys. In float32, on GPUs, and beyond these lengths the fused kernel is as fast or faster.
EXPLICIT_KEYS_TRAINING = 4096
EXPLICIT_KEYS_INFERENCE = 1024
# The weights of a part stay in the caches. Memory beyond 32 MiB is mapped anew each time it is allocated, which takes
# longer than the products.
PART_BYTES = 4 * 2**20


def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Compute the output of ``scaled_dot_product_attention`` by the faster kernel for device, dtype and length."""
    if mask is None and not causal and _parts_are_faster(q, k, v):
        return _attend_in_parts(q, k, v)
    if _explicit_is_faster(q, k, v):
        return scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)[0]
    check_qkv(q, k, v)
    n, m = q.shape[-2], k.shape[-2]
    # is_causal takes the queries for the first positions, not the last, so it is right only if n == m.
    is_causal = False
    # Not "is_causal = ... and n == m": with a dynamic length that is a symbol, and the kernel needs a plain bool.
    if causal and mask is None and n == m:
        is_causal = True
    else:
        mask = softmax_mask(mask, causal, (*q.shape[:2], n, m), q.device)
    if mask is not None:
        mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
    return _fused(q, k, v, mask, is_causal)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    key_dim, value_dim = q.shape[-1], v.shape[-1]
    if key_dim == value_dim or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    # The fused CPU kernel needs keys and values of one width. Padding with zeros changes no product, and takes 0.3 to
    # 0.9 of the time of torch's fallback (measured for d 16 to 64, 65 to 4,097 tokens; equal in one case).
    width = max(key_dim, value_dim)
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=key_dim**-0.5)
    return output[..., :value_dim]


def _attend_in_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax attention for some heads, or some queries of a head, at a time."""
    images, of_query = len(q), k.shape[-2] * k.element_size()
    if q[..., 0].numel() * of_query <= PART_BYTES:
        return scaled_dot_product_attention(q, k, v)[0]
    check_qkv(q, k, v)
    queries = min(q.shape[-2], max(1, PART_BYTES // of_query))
    heads = max(1, PART_BYTES // (queries * of_query))
    q, k, v = (rearrange(x, "b h n d -> 1 (b h) n d") for x in (q, k, v))
    mixed = [
        scaled_dot_product_attention(some_queries, some_keys, some_values)[0]
        for some_heads, some_keys, some_values in zip(*(x.split(heads, dim=1) for x in (q, k, v)), strict=True)
        for some_queries in some_heads.split(queries, dim=2)
    ]
    rows = torch.cat([rearrange(part, "1 h n e -> (h n) e") for part in mixed])
    return rearrange(rows, "(b h n) e -> b h n e", b=images, n=q.shape[-2])


def _parts_are_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    # Compiled, traced and exported, the number of parts would be that of one batch.
    is_eager = not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    return is_eager and _is_bfloat16_on_cpu(q) and not _needs_grad(q, k, v) and bool(q.numel() and k.numel())


def _explicit_is_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    longest = EXPLICIT_KEYS_TRAINING if _needs_grad(q, k, v) else EXPLICIT_KEYS_INFERENCE
    return _is_bfloat16_on_cpu(q) and k.shape[-2] <= longest


def _is_bfloat16_on_cpu(q: Tensor) -> bool:
    return q.device.type == "cpu" and q.dtype == torch.bfloat16


def _needs_grad(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
