"""Finds where modules take the residual stream: at the input of each layer, and after the last one.

Modules may lie side by side: a list of norms, one of attentions, one of MLPs. Then the module of a layer gets tokens
that a norm made for its attention alone, and the stream goes around it. In a list of attentions and MLPs in turn, an
MLP comes after the module of the last attention.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import are_same_tokens, watched_outputs
from vit.capture.experiments.followed_attention import ExchangedWeights
from vit.capture.experiments.moved import are_equal, moved_by_images
from vit.capture.interception.arithmetic import DIFFERENCES, SUMS, arithmetic_name
from vit.capture.interception.eager import as_written
from vit.capture.parts.last_tokens import and_first, fixes_logits
from vit.capture.parts.logits import result_of
from vit.capture.parts.token_places import Boundary, seen_at
from vit.capture.parts.trace import Trace

LATEST = 8  # sums that are kept, of which the last may begin the stream


@torch.no_grad()
def hold_residual_stream(model: nn.Module, pair: Tensor, calls: Sequence[int], layers: Sequence[Boundary]) -> bool:
    """Return whether all these places hold the residual stream.

    A place does if the output of its attention is added to its tokens, or if the logits read nothing of an image but
    these tokens. A place that other tokens pass, too, does not.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        calls: Numbers of the attention calls that are layers.
        layers: The input of each layer.
    """
    tokens: dict[int, Tensor] = {}
    others: list[int] = []
    with ExitStack() as looks:
        for number, place in enumerate(layers):
            looks.enter_context(place.seen(partial(_note_others, others, tokens, number)))
            looks.enter_context(place.seen(partial(_keep, tokens, number)))
        outputs = watched_outputs(model, pair, calls, with_weights=False)
    if others:
        return False
    unsure = [
        number
        for number, output in enumerate(outputs[: len(layers)])
        if output.added_to is None or number not in tokens or not are_same_tokens(output.added_to, tokens[number])
    ]
    if not unsure:
        return True
    if not {*unsure} - {0} <= _moved_by_layer_before(model, pair[:1], calls, layers):
        return False
    usual = moved_by_images(model, pair)
    return all(
        fixes_logits(model, layers[number], pair, usual) or _fixed_where_made(model, layers[number], pair, usual)
        for number in unsure
    )


@torch.no_grad()
def end_of_stream(
    model: nn.Module,
    pair: Tensor,
    entering: Sequence[Boundary],
    leaving: Sequence[Boundary | None],
    places: Sequence[Boundary],
) -> Boundary | None:
    """Return the first place where the tokens that come from the last layer enter a module with nothing added after it.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        entering: The input of each layer.
        leaving: The output of the module of each layer, or None if it is not called itself.
        places: The inputs of modules after the last layer, in order.

    Returns:
        The place; None if there is no place, no module takes the last sum, or a function changes the tokens on the way.
    """
    sums = _LastSum()
    with ExitStack() as looks:
        for place in entering[1:]:
            looks.enter_context(place.seen(sums.enter_layer))
        for place in filter(None, leaving):
            looks.enter_context(place.seen(sums.leave_layer))
        for place in places:
            looks.enter_context(place.seen(partial(sums.enter, place)))
        looks.enter_context(as_written())
        looks.enter_context(sums)
        model(pair)
    return sums.entered


@torch.no_grad()
def enter_as_they_leave(
    model: nn.Module, image: Tensor, trace: Trace, layers: Sequence[Boundary], names: Sequence[str]
) -> bool:
    """Return whether the tokens that enter each layer are those that left the layer before.

    Only layers are compared whose first tokens (B, N, D) enter a part of theirs. Their own module may take tokens in
    another layout, in a list or in a dictionary, and add something to them before.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        trace: The events of a pass.
        layers: The input of each layer.
        names: The path of each layer.
    """
    modules = [model.get_submodule(name) for name in names]
    inner = [
        number
        for number in range(1, len(layers))
        if layers[number].module is not modules[number] and modules[number] in trace.calls_again
    ]
    leaving = {number: trace.output_of(names[number - 1]) for number in inner}
    if None in leaving.values():
        return False
    left: dict[int, Tensor] = {}
    entered: dict[int, Tensor] = {}
    with ExitStack() as looks:
        for number in inner:
            looks.enter_context(leaving[number].seen(partial(_keep, left, number)))
            looks.enter_context(layers[number].seen(partial(_keep, entered, number)))
        model(image)
    # The layout does not matter if the numbers are the same.
    return all(
        _are_equal(left[number].flatten().sort().values, entered[number].flatten().sort().values) for number in inner
    )


def _moved_by_layer_before(
    model: nn.Module, image: Tensor, calls: Sequence[int], layers: Sequence[Boundary]
) -> set[int]:
    """Return the layers whose input moves if the attention of the layer before has other weights.

    The first argument of a layer may be something else, such as the tokens of an earlier layer.
    """
    moved: set[int] = set()

    def look(number: int, tokens: Tensor) -> None:
        if not torch.equal(tokens[number], tokens[0]):
            moved.add(number)

    with seen_at(layers, look):
        ExchangedWeights(calls, num_tokens=0).run(model, image)
    return moved


class _LastSum(TorchFunctionMode):
    """Follows tokens from the first place that they enter, through all that is added to them.

    If the modules of layers pass their output on to each other, what the last one returns must enter the next module.
    Else a sum may, as in a list of attentions and MLPs in turn. An adapter that takes these tokens is a layer, too.

    Attributes:
        entered: The first place that the sum of all enters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream: Tensor | None = None
        self.entered: Boundary | None = None
        self.sums: deque[Tensor] = deque(maxlen=LATEST)
        self.returned: Tensor | None = None  # by the module of the latest layer
        self.passed_on: list[bool] = []  # whether this is what the next layer takes
        self.is_changed = False  # whether the stream began as something else

    @property
    def is_whole(self) -> bool:
        """Whether the modules of layers return the stream."""
        return bool(self.passed_on) and all(self.passed_on)

    def enter_layer(self, tokens: Tensor) -> None:
        """Compare what enters a layer with what left the one before."""
        self.passed_on.append(self.returned is not None and _are_same_in_any_order(tokens, self.returned))

    def leave_layer(self, tokens: Tensor) -> None:
        """Note what the module of a layer returns."""
        self.returned = tokens.clone()

    def enter(self, place: Boundary, tokens: Tensor) -> None:
        """Note the place, if the tokens there are the stream."""
        if self.stream is None:
            returned = [] if self.returned is None else [self.returned]
            begun = returned if self.is_whole else [*returned, *self.sums]
            self.is_changed = not any(_are_same_in_any_order(tokens, each) for each in begun)
            self.stream = tokens.clone()  # to which a module may add in place
        if self.entered is None and not self.is_changed and _are_equal(tokens, self.stream):
            self.entered = place

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function. If it adds tokens to the stream, the sum is the stream."""
        is_sum = arithmetic_name(func)[0] in (*SUMS, *DIFFERENCES) and all(isinstance(x, Tensor) for x in args[:2])
        is_sum = is_sum and len(args) > 1 and args[0].ndim == 3 and args[0].shape == args[1].shape
        is_added = is_sum and self.stream is not None and any(_are_equal(each, self.stream) for each in args[:2])
        result = func(*args, **(kwargs or {}))
        if is_added:
            self.stream, self.entered = result.clone(), None
        elif is_sum and self.stream is None:
            self.sums.append(result.clone())
        return result


def _are_same_in_any_order(tokens: Tensor, others: Tensor) -> bool:
    """Return whether each image has the same tokens (B, N, D), which a model may move."""
    if tokens.shape != others.shape or tokens.ndim != 3:
        return False
    orders = (each[..., :1].argsort(dim=1, stable=True) for each in (tokens, others))
    return torch.equal(
        *(each.gather(1, order.expand_as(each)) for each, order in zip((tokens, others), orders, strict=True))
    )


def _are_equal(one: Any, tokens: Tensor) -> bool:
    return isinstance(one, Tensor) and one.shape == tokens.shape and torch.equal(one, tokens)


def _fixed_where_made(model: nn.Module, place: Boundary, pair: Tensor, usual: Tensor) -> bool:
    """Return whether images have equal logits if all get the tokens of the first where these were computed.

    A sum may enter the module at a place, and go around it as a skip connection.
    """
    images, seen = and_first(pair), []
    with place.seen(lambda tokens: seen.append(tokens.clone())):
        model(images)
    if len(seen) != 1 or len(seen[0]) != len(images):
        return False
    with as_written(), _OfFirst(seen[0]):
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


def check_passed_once(model: nn.Module, seen: Sequence[Tensor], places: Sequence[Boundary]) -> None:
    """Raise a ValueError if more tokens were seen than there are places."""
    if len(seen) != len(places):
        raise ValueError(
            f"a layer of {type(model).__name__} is called more than once ({len(seen)} times {len(places)} layers were "
            "entered or left), so it is not known which of its tokens are those of the layer: choose 'relevance'"
        )


def _note_others(others: list[int], seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    if number in seen and not (seen[number].shape == tokens.shape and torch.equal(seen[number], tokens)):
        others.append(number)


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.clone()  # it may be changed in place
