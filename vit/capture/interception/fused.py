"""The explicit forms of the fused functions of torch, which do not return the weights that multiply the values.

Letters in the einops patterns: b batch, n queries or tokens, m keys, h heads, g heads of keys and values, r query heads
that share one, d channels per head, c channels of a token, s queries, keys and values.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from vit.attention.functional import attention_logits
from vit.attention.masks import mask_logits, softmax_or_zeros

if TYPE_CHECKING:
    from vit.capture.interception.intercept import InterceptAttention


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool = False, scale: float | None = None) -> Tensor:
    """Compute the weights as torch does: (B, H, N, d), (B, H, M, d) -> (B, H, N, M).

    The numbers of a mask are added as they are: a row of -1e9 leaves no digits for the logits, as in torch's kernels.
    Causal attention of N queries to M keys lets query i see the keys up to i, counted from the first.
    """
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    logits = mask_logits(attention_logits(q, k, scale), mask, causal=False)
    return logits.softmax(dim=-1) if mask is None else softmax_or_zeros(logits)


def scaled_dot_product(
    mode: "InterceptAttention",
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what ``F.scaled_dot_product_attention`` returns: (B, H, N, d), or (B * H, N, d) for three axes."""
    if query.is_nested:
        raise ValueError(
            "attention over nested tensors cannot be seen: give images of one size to a model that pads their tokens "
            "instead of nesting them"
        )
    if attn_mask is not None and type(attn_mask) not in (Tensor, nn.Parameter):
        raise ValueError(
            f"the attn_mask is a {type(attn_mask).__name__}, whose numbers cannot be read: give a tensor, such as "
            "torch.ones(N, M, dtype=torch.bool).tril() for causal attention"
        )
    if query.ndim == 3 and mode.splits_by_image(query):
        axes = mode.first_axis
        if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) > 1:
            attn_mask = mode.split(attn_mask)
        inputs = [mode.split(x) for x in (query, key, value)]
        mixed = scaled_dot_product(mode, func, *inputs, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return rearrange(mixed, f"b h n d -> {axes} n d")
    if query.ndim != 4:
        mode.unseen.append(tuple(query.shape))
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key, value = (repeat(x, "b g n d -> b (g r) n d", r=query.shape[1] // x.shape[1]) for x in (key, value))
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask[None]
    attn = mode.edited(_weights(query, key, attn_mask, is_causal, scale), value, query)
    return einsum(attn.to(value.dtype), value, "b h n m, b h m d -> b h n d")


def _check_multi_head(query: Tensor, add_zero_attn: bool, others: Iterable[Tensor | None]) -> None:
    """Raise a ValueError if a multi-head attention has parts that its explicit form lacks."""
    if add_zero_attn or any(other is not None for other in others):
        raise ValueError(
            "nn.MultiheadAttention with padding, bias_k, static_k or add_zero_attn cannot be seen: write its attention "
            "with scaled_dot_product_attention"
        )
    if query.ndim == 2:
        raise ValueError(
            f"nn.MultiheadAttention gets the tokens of one image, {tuple(query.shape)}, as in a loop over images or in "
            "torch.vmap: write it for a batch"
        )


# The arguments after ``func`` are those of F.multi_head_attention_forward, which is ``func`` itself. Some are never
# read, since they change nothing in eval mode: embed_dim_to_check is only a check, dropout_p is for training, bias_v
# comes with bias_k, and is_causal (among the others) only says what attn_mask holds.
def multi_head(
    mode: "InterceptAttention",
    func: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    *,
    attn_mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute what ``nn.MultiheadAttention`` calls: (N, B, D) -> (N, B, D), and the weights if ``need_weights``."""
    padding = others.get("key_padding_mask")
    hides = padding is not None and bool(padding.any())  # one of False alone, or of zeros to add, hides no key
    parts = (padding if hides else None, bias_k, others.get("static_k"), others.get("static_v"))
    _check_multi_head(query, add_zero_attn, parts)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # here True means that a query may not attend to a key
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = rearrange(attn_mask, "(b h) n m -> b h n m", h=num_heads)
    if in_proj_weight is None:  # keys and values of other widths, or a pooling as in CLIP
        weights = [others[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = rearrange(in_proj_weight, "(s d) c -> s d c", s=3)
    biases = (None, None, None) if in_proj_bias is None else rearrange(in_proj_bias, "(s d) -> s d", s=3)
    q, k, v = (
        rearrange(F.linear(x, weight, bias), "n b (h d) -> b h n d", h=num_heads)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    attn = _weights(q, k, attn_mask)
    mixed = einsum(mode.edited(attn, v, q).to(v.dtype), v, "b h n m, b h m d -> b h n d")
    output = F.linear(rearrange(mixed, "b h n d -> n b (h d)"), out_proj_weight, out_proj_bias)
    if not need_weights:
        return output, None
    # Not the edited weights: what a model does with these moves tokens beside the attention that is seen.
    return output, attn.mean(dim=1) if average_attn_weights else attn
