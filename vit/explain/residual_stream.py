"""What each layer adds to the tokens: the terms of the sum that lies between two layers.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels of a head, c channels of a token.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vit.capture.anatomy import Anatomy
from vit.capture.attention_output import AttentionOutput, capture_outputs
from vit.capture.interception.arithmetic import DIFFERENCES, SUMS, arithmetic_name
from vit.capture.parts.residual_places import check_passed_once
from vit.capture.parts.token_places import Boundary
from vit.explain.maps.subject import Subject

TOLERANCE = 1e-3  # of the largest difference between tokens; attention is computed explicitly, which moves it by 1e-6
TOLERANCE_HALF = 0.05  # in 16 bits
ROUNDING = 16  # units of rounding of the largest number, besides


@dataclass
class Layer:
    """What one layer adds to the tokens: ``attention + bias + mlp``."""

    attention: AttentionOutput
    bias: Tensor  # of the output projection, (C,)
    mlp: Tensor  # of the MLP, (B, N, C)


def read_layers(subject: Subject, anatomy: Anatomy, last: Boundary) -> tuple[Tensor, list[Layer]]:
    """Return the tokens (B, N, C) that enter the first layer, and what each layer adds to them.

    The sums are followed as they are computed: the tokens after a layer must be those before it plus other terms, one
    of which is the attention. So the terms are complete, whatever library the model is from.

    Raises:
        ValueError: If a layer adds other terms than its attention and its MLP, or a norm comes after the sum.
    """
    streams: list[Tensor] = []
    with ExitStack() as stack, _FollowSums() as sums:
        for boundary in [*anatomy.parts.layers, last]:
            stack.enter_context(boundary.seen(streams.append))
        outputs = capture_outputs(subject.model, subject.images, anatomy.calls)
    check_passed_once(subject.model, streams, [*anatomy.parts.layers, last])
    layers = []
    for number, output in enumerate(outputs):
        terms = sums.between(streams[number], streams[number + 1])
        layer = None if terms is None else _layer(output, terms)
        if layer is None:
            raise ValueError(
                f"layer {number} of {type(subject.model).__name__} does not add its attention and its MLP, and nothing "
                "else, to its tokens: a norm comes after the sum (post-norm), there is no skip connection, the terms "
                "are computed together, or there are others; explain tells by 'relevance' or 'attnlrp' what counts"
            )
        layers.append(layer)
    return streams[0], layers


def mixed_by(output: AttentionOutput) -> Tensor:
    """Return what an attention adds to each token, without the bias: (B, N, C)."""
    projection = by_head(output)
    attn, values = output.attn.to(projection), output.values.to(projection)
    mixed = einsum(attn, values, "b h n m, b h m d -> b h n d")
    return einsum(mixed, projection, "b h n d, h c d -> b n c")


def by_head(output: AttentionOutput) -> Tensor:
    """Return the output projection of each head: (H, C, d)."""
    return rearrange(output.projection, "c (h d) -> h c d", h=output.attn.shape[1])


def _layer(output: AttentionOutput, terms: list[Tensor]) -> Layer | None:
    """Find the attention among two terms: only it differs from ``mixed_by`` by one vector, the bias, in all tokens.

    Terms are compared without their means over tokens, since a bias may be far larger than all that differs.
    """
    if len(terms) != 2:
        return None
    mixed = mixed_by(output)
    if mixed.shape != terms[0].shape:  # a projection of two stages
        return None
    rests = [term - mixed for term in terms]
    biases = [reduce(rest, "b n c -> c", "mean") for rest in rests]
    moved = [(rest - bias).abs().max() for rest, bias in zip(rests, biases, strict=True)]
    found = int(moved[1] < moved[0])
    term, bias = terms[found], biases[found]
    numbers = torch.finfo(mixed.dtype)
    tolerance = TOLERANCE_HALF if numbers.bits < 32 else TOLERANCE
    differing = (mixed - reduce(mixed, "b n c -> c", "mean")).abs().max()
    allowed = tolerance * differing + ROUNDING * numbers.eps * max(term.abs().max(), mixed.abs().max())
    return Layer(output, bias, terms[1 - found]) if moved[found] <= allowed else None


class _FollowSums(TorchFunctionMode):
    """Remembers every sum and difference of two tensors (B, N, C) of the same shape, and their copies."""

    def __init__(self) -> None:
        super().__init__()
        # By id of the sum, which is kept alive here: the sum and its terms.
        self.sums: dict[int, tuple[Tensor, ...]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function. An in-place sum makes a new tensor, so that its terms keep their values."""
        kwargs = kwargs or {}
        name, is_reversed = arithmetic_name(func)
        is_sum = name in (*SUMS, *DIFFERENCES) and len(args) == 2 and kwargs.keys() <= {"alpha"}
        if is_sum and _alike(*args):
            one, other = reversed(args) if is_reversed else args
            factor = kwargs.get("alpha", 1) * (-1 if name in DIFFERENCES else 1)
            added = other if factor == 1 else factor * other
            total = one + added
            self.sums[id(total)] = total, one, added
            return total
        result = func(*args, **kwargs)
        # Python's sum() begins with 0.
        if name == "clone" or (is_sum and name in SUMS and type(args[1]) is int and args[1] == 0):
            self.sums[id(result)] = result, args[0]
        return result

    def between(self, start: Tensor, end: Tensor) -> list[Tensor] | None:
        """Return the terms that were added to ``start`` to make ``end``; None if ``end`` was made otherwise."""
        terms, waiting, starts = [], [end], 0
        while waiting:
            tensor = waiting.pop()
            if tensor is start:
                starts += 1
            elif id(tensor) in self.sums:
                waiting += self.sums[id(tensor)][1:]
            else:
                terms.append(tensor)
        return terms if starts == 1 else None


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.ndim == 3 and one.shape == other.shape
