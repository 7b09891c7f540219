"""Checks that the tokens at the input of each layer are the residual stream.

Modules may lie side by side: a list of norms, one of attentions, one of MLPs. Then the module of a layer gets tokens
that a norm made for its attention alone, and the stream goes around it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import are_same_tokens, watched_outputs
from vit.capture.experiments.moved import are_equal, moved_by_images
from vit.capture.parts.last_tokens import and_first, fixes_logits
from vit.capture.parts.logits import result_of
from vit.capture.parts.trace import Boundary


@torch.no_grad()
def hold_residual_stream(model: nn.Module, pair: Tensor, calls: Sequence[int], layers: Sequence[Boundary]) -> bool:
    """Return whether all these places hold the residual stream.

    A place does if the output of its attention is added to its tokens, or if the logits read nothing of an image but
    these tokens.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        calls: Numbers of the attention calls that are layers.
        layers: The input of each layer.
    """
    tokens: dict[int, Tensor] = {}
    with ExitStack() as looks:
        for number, place in enumerate(layers):
            looks.enter_context(place.seen(partial(_keep, tokens, number)))
        outputs = watched_outputs(model, pair, calls, with_weights=False)
    unsure = [
        place
        for number, (output, place) in enumerate(zip(outputs, layers, strict=False))
        if output.added_to is None or number not in tokens or not are_same_tokens(output.added_to, tokens[number])
    ]
    if not unsure:
        return True
    usual = moved_by_images(model, pair)
    return all(
        fixes_logits(model, place, pair, usual) or _fixed_where_made(model, place, pair, usual) for place in unsure
    )


def _fixed_where_made(model: nn.Module, place: Boundary, pair: Tensor, usual: Tensor) -> bool:
    """Return whether images have equal logits if all get the tokens of the first where these were computed.

    A sum may enter the module at a place, and go around it as a skip connection.
    """
    images, seen = and_first(pair), []
    with place.seen(lambda tokens: seen.append(tokens.clone())):
        model(images)
    if len(seen) != 1 or len(seen[0]) != len(images):
        return False
    with _OfFirst(seen[0]):
        return are_equal(result_of(model(images)), usual)


class _OfFirst(TorchFunctionMode):
    """Within the context, a function that returns these tokens returns those of the first image for all."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.tokens = tokens

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and exchange its result if it is these tokens."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.shape == self.tokens.shape and torch.equal(result, self.tokens):
            return result[:1].expand_as(result).clone()
        return result


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.clone()  # it may be changed in place
