"""Captures what each attention adds to its tokens: its weights, its values and its output projection.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head, c channels of a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, pack, rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.alone import heads_first_calls
from vit.capture.intercept import InterceptAttention


@dataclass
class AttentionOutput:
    """One attention. Its output is ``projection (attn values)`` plus a bias."""

    attn: Tensor  # the weights, (B, H, N, M)
    values: Tensor  # (B, H, M, d)
    projection: Tensor | None = None  # of the output, (C, H * d), times the factors of LayerScale if one follows


@torch.no_grad()
def capture_outputs(model: nn.Module, images: Tensor, calls: Sequence[int]) -> list[AttentionOutput]:
    """Return the weights, values and output projection of each of these attention calls on images (B, C, H, W).

    Raises:
        ValueError: If the mixed values do not enter a linear layer unchanged, for example because of an output gate.
    """
    found: dict[int, AttentionOutput] = {}

    def keep(call: int, attn: Tensor) -> Tensor:
        if call in calls:
            found[call] = AttentionOutput(attn, intercepted.values)
            watch.follow(found[call])
        return attn

    intercepted = InterceptAttention(model, keep, len(images), heads_first_calls(model, images))
    with _WatchProjection() as watch, intercepted:
        model(images)
    outputs = [found[call] for call in calls]
    if any(output.projection is None for output in outputs):
        raise ValueError(
            f"what the attention of {type(model).__name__} mixes does not enter a linear layer unchanged, so what each "
            "token adds is not known; capture_attention reads the weights alone"
        )
    return outputs


class _WatchProjection(TorchFunctionMode):
    """Finds the linear layer after each attention, and the factors per channel that follow this layer."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited: AttentionOutput | None = None  # the attention whose projection comes next
        self.projected: tuple[AttentionOutput, Tensor] | None = None  # the last attention projected, and its output

    def follow(self, output: AttentionOutput) -> None:
        self.awaited, self.projected = output, None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and check whether it is the awaited projection or the scaling after one."""
        if func in (Tensor.mul, Tensor.mul_, Tensor.__mul__, torch.mul) and len(args) == 2 and self.projected:
            self._scale(*args)
            self._scale(*reversed(args))  # either argument may be the factors
        result = func(*args, **kwargs or {})
        if func is F.linear and self.awaited is not None:
            output, self.awaited = self.awaited, None
            if _is_mixed(args[0], output):
                output.projection, self.projected = args[1].detach(), (output, result)
        return result

    def _scale(self, tokens: Any, factors: Any) -> None:
        if self.projected is None:
            return
        output, tensor = self.projected
        if not (isinstance(tokens, Tensor) and isinstance(factors, Tensor)):
            return
        if tokens.data_ptr() == tensor.data_ptr() and factors.numel() == tensor.shape[-1]:
            output.projection = output.projection * rearrange(factors.detach().flatten(), "c -> c 1")
            self.projected = None


def _is_mixed(inputs: Tensor, output: AttentionOutput) -> bool:
    """Return whether the inputs are the mixed values of an attention. The batch may be their first or second axis."""
    mixed = einsum(output.attn.to(output.values.dtype), output.values, "b h n m, b h m d -> b h n d")
    tokens, rounding = pack([inputs], "* c")[0], 1e-3 * float(mixed.abs().max())
    for pattern in ("b h n d -> (b n) (h d)", "b h n d -> (n b) (h d)"):
        expected = rearrange(mixed, pattern)
        if tokens.shape == expected.shape and torch.allclose(tokens, expected, rtol=1e-3, atol=rounding):
            return True
    return False
