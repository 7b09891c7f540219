"""Captures what each attention adds to its tokens: its weights, its values and its output projection.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head, c channels of a token.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, pack, rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.checks.alone import check_count
from vit.capture.interception.arithmetic import COPIES, DIFFERENCES, PRODUCTS, QUOTIENTS, SUMS, arithmetic_name
from vit.capture.interception.head_order import intercept
from vit.capture.parts.logits import result_of

MATRIX_FUNCTIONS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
SAME = 1e-3  # two tokens are the same if they differ by less than this share of a number, or of the largest one
SAME_IN_DOUBLE = 1e-5  # in float64, of which a model may compute a part in float32


@dataclass
class AttentionOutput:
    """One attention. Its output is ``projection (attn values)`` plus a bias."""

    attn: Tensor  # the weights, (B, H, N, M)
    values: Tensor  # (B, H, M, d)
    projection: Tensor | None = None  # of the output, (C, H * d), times the factors that follow, such as LayerScale
    added_to: Tensor | None = None  # the tokens that the output is added to; None if something else comes before
    is_scaled_stream: bool = False  # whether these are tokens that a module took before, times a number
    inside: list[Tensor] = field(default_factory=list)  # what entered the modules that contain this attention


def capture_outputs(model: nn.Module, images: Tensor, calls: Sequence[int]) -> list[AttentionOutput]:
    """Return the weights, values and output projection of each of these attention calls on images (B, C, H, W).

    Raises:
        ValueError: If the mixed values do not enter a linear layer unchanged, for example because of an output gate.
    """
    outputs = watched_outputs(model, images, calls)
    if any(output.projection is None for output in outputs):
        raise ValueError(
            f"what the attention of {type(model).__name__} mixes does not enter a linear layer unchanged, so what each "
            "token adds is not known; capture_attention reads the weights alone"
        )
    return outputs


@torch.no_grad()
def watched_outputs(
    model: nn.Module, images: Tensor, calls: Sequence[int], *, with_weights: bool = True
) -> list[AttentionOutput]:
    """Return what is known of the output of each of these attention calls on images (B, C, H, W).

    Without weights, those of one layer are in memory at a time.
    """
    found, _ = _watch(model, images, calls, with_weights, lambda tokens: tokens)
    check_count(model, len(found), len(images), len(calls))
    return [found[call] for call in calls]


@torch.no_grad()
def logits_with_sum(model: nn.Module, images: Tensor, call: int, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Return the logits while ``change`` replaces the sum of the output of an attention and the tokens it is added to.

    The sum is (B, N, D) or (N, B, D). If the output is added to nothing, the answer is None.
    """
    found, output = _watch(model, images, [call], False, change)
    return None if found[call].added_to is None else result_of(output)


def _watch(
    model: nn.Module, images: Tensor, calls: Sequence[int], with_weights: bool, change: Callable[[Tensor], Tensor]
) -> tuple[dict[int, AttentionOutput], Any]:
    """Return what is known of each attention call, and what the model returns."""
    found: dict[int, AttentionOutput] = {}
    entered: list[Tensor | None] = []  # the running modules, innermost last
    since_last: list[Tensor] = []  # what entered modules since the attention before

    def keep(call: int, attn: Tensor) -> Tensor:
        if call in calls:
            inside = [tokens.detach().clone() for tokens in entered if tokens is not None and tokens.ndim == 3]
            values = intercepted.values
            of_heads = attn.expand(-1, max(attn.shape[1], values.shape[1]), -1, -1)  # one set may serve all heads
            found[call] = AttentionOutput(of_heads, values, inside=inside)
            watch.follow(found[call], [*since_last])
            since_last.clear()
        return attn

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args else next(iter(kwargs.values()), None)
        entered.append(first if isinstance(first, Tensor) else None)
        if isinstance(first, Tensor) and first.is_floating_point() and first.ndim < 4:  # no map of pixels
            since_last.append(first)

    def leave(*_: Any) -> None:
        entered.pop()

    intercepted = intercept(model, images, keep)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave))
        hooks.enter_context(watch := WatchProjection(with_weights, change))
        hooks.enter_context(intercepted)
        output = model(images)
    return found, output


def are_same_tokens(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same tokens: (B, N, D), (N, B, D) or (B * N, D), and (B, N, D)."""
    if other.ndim == 3 and one.shape == (other.shape[0] * other.shape[1], other.shape[2]):
        one = rearrange(one, "(b n) d -> b n d", b=len(other))
    if one.ndim == 3 and one.shape != other.shape:
        one = rearrange(one, "n b c -> b n c")
    if one.shape != other.shape:
        return False
    share = same_share(one)
    return torch.allclose(one.to(other), other, rtol=share, atol=share * _largest(other), equal_nan=True)


def same_share(tokens: Tensor) -> float:
    """Return by which share of a number, or of the largest one, tokens may differ by rounding."""
    return SAME_IN_DOUBLE if tokens.dtype == torch.float64 else SAME


def _largest(tokens: Tensor) -> float:
    """Return the largest absolute number that is finite: if all keys are masked, tokens are no numbers."""
    return float(tokens.detach().nan_to_num(0.0, 0.0, 0.0).abs().max())


class WatchProjection(TorchFunctionMode):
    """Finds the linear layer after each attention, the factors that follow it, and what the product is added to.

    The sum is replaced by ``change(sum)``.
    """

    def __init__(self, with_weights: bool, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.with_weights, self.change = with_weights, change
        self.awaited: AttentionOutput | None = None  # the attention whose projection comes next
        self.projected: AttentionOutput | None = None  # the last attention that was projected
        self.before: Sequence[Tensor] = ()
        self.tensor, self.version = torch.empty(0), 0  # its output, and how often that was changed in place

    def follow(self, output: AttentionOutput, before: Sequence[Tensor] = ()) -> None:
        """Expect the projection of an attention next. ``before`` are tokens that may be its skip connection."""
        self._let_go(self.awaited)
        self.awaited, self.projected, self.before = output, None, before

    def _let_go(self, output: AttentionOutput | None) -> None:
        if output is not None and not self.with_weights:
            output.attn = output.values = output.attn.new_empty(0)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and check whether it is the awaited projection, or a step after one."""
        kwargs = kwargs or {}
        name, is_reversed = arithmetic_name(func)
        operands = args[1::-1] if is_reversed else args[:2]
        places = [place for place, operand in enumerate(operands) if self._is_output(operand)]
        is_sum = places and name in (*SUMS, *DIFFERENCES) and len(args) == 2
        is_sum = is_sum and self._add(name, places[0], operands[1 - places[0]], kwargs.get("alpha", 1))
        result = func(*args, **kwargs)
        if is_sum:
            return self.change(result)
        projection = _projection(func, args, kwargs) if self.awaited is not None else None
        if projection is not None:
            output, self.awaited = self.awaited, None
            inputs, weights = projection
            if _is_mixed(inputs, output):
                output.projection, self.projected = _dense(weights), output
                self._keep(result)
            self._let_go(output)
        elif places and isinstance(result, Tensor):
            self._step(name, places[0], operands, result)
        return result

    def _keep(self, tensor: Tensor) -> None:
        """Note where the output lies now."""
        self.tensor, self.version = tensor, _version_of(tensor)

    def _is_output(self, argument: Any) -> bool:
        tensor = self.tensor
        return (
            self.projected is not None
            and isinstance(argument, Tensor)
            and argument.data_ptr() == tensor.data_ptr()
            and argument.numel() == tensor.numel()
            and _version_of(tensor) == self.version  # a part of it may have been changed in place
        )

    def _add(self, name: str, place: int, other: Any, alpha: float) -> bool:
        """Record what the output is added to, or subtracted from. Return whether it is."""
        if self.projected is None or not isinstance(other, Tensor) or other.shape != self.tensor.shape:
            return False
        if place == 0 and (alpha != 1 or name in DIFFERENCES):
            return False
        factor = -alpha if name in DIFFERENCES else alpha
        if factor != 1:
            self.projected.projection = self.projected.projection * factor
        self.projected.added_to = other.detach().clone()  # it may be changed in place
        self.projected.is_scaled_stream = any(_is_multiple(other, tokens) for tokens in self.before)
        self.projected = None
        return True

    def _step(self, name: str, place: int, operands: tuple[Any, ...], result: Tensor) -> None:
        """Multiply the projection by factors, or note where the output lies now, or that it was changed otherwise."""
        if self.projected is None:
            return
        is_same = _version_of(self.tensor) == self.version
        factors = self._factors(operands[1 - place]) if len(operands) == 2 else None
        is_copied = name in (*COPIES, "reshape") or (is_same and result.data_ptr() == self.tensor.data_ptr())
        if factors is not None and (name in PRODUCTS or (name in QUOTIENTS and place == 0)):
            factors = 1 / factors if name in QUOTIENTS else factors
            self.projected.projection = self.projected.projection * factors
            self._keep(result)
        elif (factors is not None and name in SUMS) or (is_copied and result.numel() == self.tensor.numel()):
            self._keep(result)
        elif not is_same:
            self.projected = None

    def _factors(self, factors: Any) -> Tensor | None:
        """Return one factor for all channels or one for each, (C, 1); None if they differ by token."""
        channels = self.tensor.shape[-1]
        if not isinstance(factors, Tensor | int | float):
            return None
        factors = torch.as_tensor(factors, dtype=self.tensor.dtype, device=self.tensor.device).detach()
        if factors.numel() == 1:
            return rearrange(factors.flatten(), "one -> one 1")
        if factors.numel() == factors.shape[-1] == channels == len(self.projected.projection):
            return rearrange(factors.flatten(), "c -> c 1")
        return None


def _projection(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Return the inputs and the weights (C, H * d) of a linear layer, or of a product with a matrix; None of others.

    >>> inputs, matrix = torch.zeros(5, 17, 12), torch.zeros(12, 24)
    >>> _projection(torch.matmul, (inputs, matrix), {})[1].shape, _projection(torch.matmul, (inputs, inputs.mT), {})
    (torch.Size([24, 12]), None)
    """
    if func is F.linear:
        given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
        return given["input"], given["weight"]
    factors = args[1:3] if func in (torch.addmm, Tensor.addmm) else args if func in MATRIX_FUNCTIONS else ()
    return (factors[0], factors[1].mT) if len(factors) == 2 and factors[1].ndim == 2 else None


def _dense(weights: Tensor) -> Tensor:
    """Return the weights of a linear layer (C, H * d). Those of quantised types are known by what they do alone."""
    if type(weights) in (Tensor, nn.Parameter):
        return weights.detach()
    return F.linear(torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device), weights).mT


def _is_multiple(tokens: Tensor, of: Tensor) -> bool:
    """Return whether tokens are others times a number other than 0."""
    if tokens.shape != of.shape or not of.any():
        return False
    factor = float((tokens * of).sum() / of.square().sum())
    return factor != 0 and are_same_tokens(tokens, factor * of)


def _version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place; None if it was made in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _is_mixed(inputs: Tensor, output: AttentionOutput) -> bool:
    """Return whether the inputs are the mixed values of an attention. The batch may be their first or second axis."""
    mixed = einsum(output.attn.to(output.values.dtype), output.values, "b h n m, b h m d -> b h n d")
    tokens, share = pack([inputs], "* c")[0], same_share(inputs)
    for pattern in ("b h n d -> (b n) (h d)", "b h n d -> (n b) (h d)"):
        expected = rearrange(mixed, pattern).to(tokens.dtype)
        if tokens.shape == expected.shape and torch.allclose(
            tokens, expected, share, share * _largest(mixed), equal_nan=True
        ):
            return True
    return False
