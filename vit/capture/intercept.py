"""Intercepts attention weights before they multiply the values, in any running model.

Fused kernels do not return their weights, and every library calls them in its own way. All of them go through a few
functions of torch, which a ``TorchFunctionMode`` can replace: here by the explicit formula, with the weights in the
autograd graph. Our own mechanisms compute their ``weights`` instead, as their tiles and chunks are no attention of
whole images. The model is unchanged afterwards.

Letters in the einops patterns: b batch, n tokens, h heads, d channels per head, s the three of queries, keys, values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.base import Mechanism

Edit = Callable[[int, Tensor], Tensor]


class InterceptAttention(TorchFunctionMode):
    """A context in which attention is computed explicitly, and ``edit`` reads or replaces its weights.

    >>> def uniform(layer, attn):
    ...     return torch.full_like(attn, 1 / attn.shape[-1])
    >>> from vit import VisionTransformer
    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> with InterceptAttention(model, uniform):
    ...     logits = model(torch.randn(5, 3, 32, 32))  # every token gets the mean of the values

    Args:
        model: The model that runs within the context.
        edit: Called as ``edit(layer, attn)`` for each attention (B, H, N, M), layers counted from 0 in the order of
            their calls; the weights that it returns multiply the values.
    """

    def __init__(self, model: nn.Module, edit: Edit) -> None:
        super().__init__()
        self.model = model
        self.edit = edit
        self.num_calls = 0
        self.replaced: list[tuple[Mechanism, Any]] = []
        self.paused = False

    def __enter__(self) -> "InterceptAttention":
        """Replace the forward methods of our mechanisms, and the functions of torch."""
        mechanisms = [module for module in self.model.modules() if isinstance(module, Mechanism)]
        self.replaced = [(mechanism, vars(mechanism).get("forward")) for mechanism in mechanisms]
        for mechanism, _ in self.replaced:
            mechanism.forward = partial(self._explicit_forward, mechanism)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Restore them."""
        super().__exit__(*error)
        for mechanism, forward in self.replaced:
            del mechanism.forward
            if forward is not None:  # an outer interception
                mechanism.forward = forward

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute attention explicitly, and call every other function as it is."""
        explicit = None if self.paused else EXPLICIT.get(func)
        kwargs = kwargs or {}
        return func(*args, **kwargs) if explicit is None else explicit(self, func, *args, **kwargs)

    def _explicit_forward(self, mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, **around: Any) -> Tensor:
        self.paused = True  # the softmax inside is not another layer
        weights = mechanism.weights(q, k, **{name: around[name] for name in mechanism.weights_take})
        self.paused = False
        return mechanism.mix(self.edited(weights).to(v.dtype), v, **around)

    def edited(self, attn: Tensor) -> Tensor:
        """Return the weights to use in place of these: (B, H, N, M) -> (B, H, N, M)."""
        # Frozen models, too, need gradients with respect to attention.
        if torch.is_grad_enabled() and not attn.requires_grad:
            attn.requires_grad_()
        self.num_calls += 1
        return self.edit(self.num_calls - 1, attn)


def _scaled_dot_product(
    mode: InterceptAttention,
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
    if query.ndim != 4:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        copies = query.shape[1] // key.shape[1]
        key, value = (repeat(x, "b g n d -> b (g r) n d", r=copies) for x in (key, value))
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask[None]
    attn = mode.edited(attention_weights(query, key, mask=attn_mask, causal=is_causal, scale=scale))
    return einsum(attn.to(value.dtype), value, "b h n m, b h m d -> b h n d")


def _multi_head(
    mode: InterceptAttention,
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
    """Compute what ``nn.MultiheadAttention`` calls: tokens (N, B, D) -> (N, B, D), and weights if ``need_weights``."""
    if in_proj_weight is None or bias_k is not None or add_zero_attn or others.get("key_padding_mask") is not None:
        raise ValueError(
            "nn.MultiheadAttention with keys of another width, padding, bias_k or add_zero_attn cannot be seen: "
            "write its attention with scaled_dot_product_attention"
        )
    weights = rearrange(in_proj_weight, "(s d) c -> s d c", s=3)
    biases = (None, None, None) if in_proj_bias is None else rearrange(in_proj_bias, "(s d) -> s d", s=3)
    q, k, v = (
        rearrange(F.linear(x, weight, bias), "n b (h d) -> b h n d", h=num_heads)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    attn = mode.edited(attention_weights(q, k, mask=attn_mask))
    mixed = einsum(attn.to(v.dtype), v, "b h n m, b h m d -> b h n d")
    output = F.linear(rearrange(mixed, "b h n d -> n b (h d)"), out_proj_weight, out_proj_bias)
    if not need_weights:
        return output, None
    return output, attn.mean(dim=1) if average_attn_weights else attn


def _softmax(
    mode: InterceptAttention,
    func: Callable[..., Tensor],
    input: Tensor,
    dim: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    probabilities = func(input, dim, *args, **kwargs)
    is_attention = input.ndim == 4 and dim in (-1, 3) and input.is_floating_point() and input.shape[-1] > 1
    return mode.edited(probabilities) if is_attention else probabilities


EXPLICIT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _scaled_dot_product,
    F.multi_head_attention_forward: _multi_head,
    F.softmax: _softmax,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
}
