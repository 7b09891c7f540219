"""Finds by experiment in which order the tokens stand in each layer.

A model may reorder its tokens between two layers: into windows, backwards in every second layer, or with the class
token last. For the experiment, each token attends to itself alone, so that tokens do not mix. Some of them get more of
their own value in the first layer, and exactly these change in later layers. A binary code says which ones get more.

Letters in the einops patterns: k sets of tokens, h heads, m keys, d channels of a head.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.experiments.identity_pass import unmoved
from vit.capture.experiments.moved import changes, rounding
from vit.capture.experiments.results_after import ResultsAfter
from vit.capture.interception.head_order import intercept
from vit.capture.remedy import CHOOSE_OTHERS

STRENGTHS = (1.0, 1e4)  # of the change; LayerScale may begin at 1e-6, so that a small change is lost in rounding
STILL = 1e-5  # a token is still if it moves by less than this share of the largest move
CLEAR = 30.0  # if the order changed, tokens must move this many times more with their own sets than with the others

Orders = Mapping[int, Tensor]
AFTER_LAYERS = -1  # in place of the number of a call: the tokens after the last layer
Where = tuple[int, str | int]  # number of a call, and "values" or "queries"; or AFTER_LAYERS and the index of a place
Watch = Callable[[Callable[[int, Tensor], object]], AbstractContextManager[None]]


def token_orders(
    model: nn.Module,
    image: Tensor,
    calls: Sequence[int],
    num_tokens: int,
    watch_last: Watch = lambda _: nullcontext(),
) -> dict[int, Tensor]:
    """Return the places of the tokens, (N,) or (M,), of each attention call in another order than the first.

    ``attn[..., places, :][..., places]`` has the order of the first call.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers, in order. The last one may have a single query.
        num_tokens: Number N of tokens in the first of them.
        watch_last: Called with a function that looks at the index of a place after the last layer, 0, and its tokens
            (k, N, D); returns a context. Their order has the number ``AFTER_LAYERS``.

    Raises:
        ValueError: If the tokens of a call are in no order that can be found, or the order of the queries of the last
            one is not known.
    """
    codes = _codes(num_tokens)
    for strength in STRENGTHS:
        experiment = _Experiment(model, image, calls, watch_last, strength)
        moved = experiment.run(codes)
        if not any(_still(responses).any() for responses in moved.values()):
            break
    # Without a change of order, it is enough that tokens move most with their own sets.
    later = [(where, responses) for where, responses in moved.items() if responses.any()]  # the rest is a side branch
    if all(_in_order(responses, codes) for _, responses in later):
        return {}
    others, found = experiment.run(~codes), {}
    for where, responses in later:
        sources = _sources(responses, others[where], codes)
        call, part = where
        order = None if sources is None else sources.argsort(stable=True)
        if order is None or not torch.equal(found.setdefault(call, order), order):
            raise _lost(model, "after the last one" if call == AFTER_LAYERS else f"{part} of attention {call}")
    changed = {call: order for call, order in found.items() if not torch.equal(order, torch.arange(len(order)))}
    # The values of the last attention do not tell in which order its queries stand. Later places would show it.
    *before, last = found
    is_new = last in changed and not (before and torch.equal(found[before[-1]], found[last]))
    if is_new and last in experiment.square and (last, "queries") not in moved:
        raise _lost(model, f"the keys of attention {last}, and perhaps its queries")
    return changed


@torch.no_grad()
def tokens_of_places(
    model: nn.Module, image: Tensor, calls: Sequence[int], num_tokens: int, watch: Watch
) -> dict[int, Tensor]:
    """Return which tokens stand at places after the last layer, by the index of a place: (M,), -1 for new ones.

    Places with a number that depends on two tokens are left out, and those whose tokens are not found.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number N of tokens.
        watch: Called with a function that looks at the index of a place and its tokens (k, M, D); returns a context.
    """
    codes = _codes(num_tokens)
    unchanged = torch.zeros_like(codes[:1])
    sets = torch.cat([unchanged, codes, ~codes, unchanged])
    found: dict[int, Tensor] = {}
    mixed: set[int] = set()
    for strength in STRENGTHS:
        for (call, index), copies in _Experiment(model, image, calls, watch, strength).tokens(sets).items():
            if call == AFTER_LAYERS and len(copies) == len(sets):
                own, others = reduce((changes(copies) > rounding(copies))[:-1], "k m d -> k m", "max").chunk(2)
                if (own & others).any():
                    mixed.add(index)
                elif (numbers := _numbers(own, others)) is not None:
                    found.setdefault(index, numbers)
    return {index: numbers for index, numbers in found.items() if index not in mixed}


def _numbers(own: Tensor, others: Tensor) -> Tensor | None:
    """Return the token at each position, (M,), by the sets with which it moves, and those without it: (k, M) each.

    It is None if a set and the others leave a position as it is, but not all, or a token is at two positions.
    """
    still = ~(own | others).any(dim=0)
    if not ((own | others).all(dim=0) | still).all():
        return None
    numbers = reduce(own * 2 ** torch.arange(len(own))[:, None], "k m -> m", "sum") - 1
    known = numbers[~still]
    return torch.where(still, -1, numbers) if len(known) and len(known.unique()) == len(known) else None


@torch.no_grad()
def check_last_rows(model: nn.Module, image: Tensor, calls: Sequence[int], num_tokens: int) -> None:
    """Check that row n of the last attention makes token n, if a module or a function returns tokens after it.

    Queries that the model multiplies by keys itself are not seen. The rows of sets of tokens are scaled, and the tokens
    that move are those that they make. What functions return counts if no module returns tokens.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers. The tokens of the last one stand in the order of the
            first.
        num_tokens: Number N of tokens.

    Raises:
        ValueError: If the rows are in another order.
    """
    codes = _codes(num_tokens)
    sets = torch.cat([torch.zeros_like(codes[:1]), codes, ~codes])
    last, is_after = calls[-1], False
    made: list[tuple[nn.Module | None, Tensor]] = []  # by modules, and by functions

    def scaled(call: int, attn: Tensor) -> Tensor:
        nonlocal is_after
        is_after = call == last
        results.reached(call)
        if not is_after or attn.shape[-2] != num_tokens:
            return attn
        intercepted.check_all_images(call, attn)
        return attn * (1 + rearrange(sets, "k n -> k 1 n 1").to(attn))

    def keep(module: nn.Module | None, tokens: Any) -> None:
        is_whole = isinstance(tokens, Tensor) and tokens.ndim == 3 and tokens.shape[:2] == (len(sets), num_tokens)
        if is_after and is_whole and tokens.is_floating_point():
            made.append((module, tokens.cpu().double()))

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        keep(module, _tokens_of(output))

    def look(_: int, result: Tensor) -> Tensor:
        keep(None, result)
        return result

    images, results = image.expand(len(sets), -1, -1, -1), ResultsAfter(last, look)
    intercepted = intercept(model, images, scaled)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(leave))
        with intercepted, results:
            model(images)
    of_modules = [(module, tokens) for module, tokens in made if module is not None]
    for module, tokens in reversed(of_modules or made):
        moved = reduce((tokens[1:] - tokens[:1]) ** 2, "k m d -> k m", "sum").sqrt()
        sources = _sources(*moved.split(len(codes)), codes)
        if sources is not None and not (sources < 0).all():
            places = _places_after(model, image, calls, module, num_tokens)
            if not torch.equal(places[sources[sources >= 0]], torch.arange(num_tokens)[sources >= 0]):
                raise _lost(model, f"queries of attention {last}")
            return


def _places_after(
    model: nn.Module, image: Tensor, calls: Sequence[int], module: nn.Module | None, num_tokens: int
) -> Tensor:
    """Return the place of each token in what a module returns after the last layer, (N,): something may move them all.

    The rows of a single layer and its tokens move alike, so its tokens are taken to stay.
    """

    def watch_last(look: Callable[[int, Tensor], object]) -> AbstractContextManager[None]:
        def leave(_: nn.Module, __: Any, output: Any) -> None:
            tokens = _tokens_of(output)
            if isinstance(tokens, Tensor) and tokens.ndim == 3 and tokens.shape[1] == num_tokens:
                look(0, tokens)

        return module.register_forward_hook(leave)

    in_order = torch.arange(num_tokens)
    if module is None or len(calls) == 1:
        return in_order
    codes, place = _codes(num_tokens), (AFTER_LAYERS, 0)
    experiment = _Experiment(model, image, calls, watch_last, STRENGTHS[0])
    with unmoved(model):
        moved, others = (experiment.run(sets).get(place) for sets in (codes, ~codes))
    if moved is None or not moved.any() or _in_order(moved, codes):
        return in_order
    sources = _sources(moved, others, codes)
    if sources is None:
        raise _lost(model, "after the last one")
    return sources.argsort(stable=True)


def _tokens_of(output: Any) -> Any:
    """Return what a module returns, or the first of several."""
    return output[0] if isinstance(output, tuple) and output else output


def check_same_orders(model: nn.Module, one: Orders, other: Orders) -> None:
    """Raise a ValueError if the tokens of two images stand in different orders, as if a model sorts them by content."""
    if one.keys() != other.keys() or not all(torch.equal(one[call], other[call]) for call in one):
        raise ValueError(
            f"{type(model).__name__} puts the tokens of two images into different orders, so no order holds for all "
            f"images: {CHOOSE_OTHERS}"
        )


def _lost(model: nn.Module, where: str) -> ValueError:
    return ValueError(
        f"the tokens of {type(model).__name__} are mixed, exchanged or cut off between its attentions in a way that "
        f"cannot be undone ({where}): {CHOOSE_OTHERS}"
    )


def in_first_order(attn: Tensor, order: Tensor | None) -> Tensor:
    """Bring the queries and keys of attention (B, H, N, M) into this order. A single query stays."""
    if order is None:
        return attn
    return attn[..., order] if attn.shape[-2] == 1 else attn[..., order, :][..., order]


def in_own_order(attn: Tensor, order: Tensor | None) -> Tensor:
    """Bring attention back into the order of the model, from which ``in_first_order`` has taken it."""
    return attn if order is None else in_first_order(attn, order.argsort())


class _Experiment:
    """Passes copies of one image, in which each token attends to itself alone, and measures which tokens move."""

    def __init__(
        self, model: nn.Module, image: Tensor, calls: Sequence[int], watch_last: Watch, strength: float
    ) -> None:
        self.model, self.image, self.calls, self.watch_last, self.strength = model, image, calls, watch_last, strength
        self.square: set[int] = set()  # calls of all tokens to all tokens

    def run(self, sets: Tensor) -> dict[Where, Tensor]:
        """Return how much the tokens of each later call move with each set of tokens (k, N): (k, M)."""
        tokens = self.tokens(torch.cat([torch.zeros_like(sets[:1]), sets]))
        return {
            where: reduce(changes(of_call.double()) ** 2, "k m d -> k m", "sum").sqrt()
            for where, of_call in tokens.items()
            if where[0] != self.calls[0]
        }

    @torch.no_grad()
    def tokens(self, sets: Tensor) -> dict[Where, Tensor]:
        """Return the tokens of each call with each set of tokens changed (k, N): (k, M, d)."""
        images = self.image.expand(len(sets), -1, -1, -1)
        seen: dict[Where, Tensor] = {}

        def alone(call: int, attn: Tensor) -> Tensor:
            if call not in self.calls:
                return attn
            intercepted.check_all_images(call, attn)
            for part, tokens in (("values", intercepted.values), ("queries", intercepted.queries)):
                if tokens is not None and (part == "values" or attn.shape[-2] == attn.shape[-1]):
                    seen[call, part] = rearrange(tokens, "k h m d -> k m (h d)").cpu()
            if attn.shape[-2] == attn.shape[-1]:
                self.square.add(call)
            else:  # a query that pools the tokens would move with all of them
                return torch.zeros_like(attn)
            own = attn.new_ones(len(sets), attn.shape[-1])
            if call == self.calls[0]:
                own = own + self.strength * sets.to(own)
            return rearrange(own, "k m -> k 1 m 1") * torch.eye(attn.shape[-1]).to(own).expand_as(attn)

        def look(index: int, tokens: Tensor) -> None:
            seen[AFTER_LAYERS, index] = tokens.detach().cpu().clone()

        intercepted = intercept(self.model, images, alone)
        with self.watch_last(look), intercepted:
            self.model(images)
        return seen


def _codes(num_tokens: int) -> Tensor:
    """Return sets of tokens such that each token is in at least one, and no two are in the same sets: (k, N)."""
    bits = torch.arange(max(1, math.ceil(math.log2(num_tokens + 1))))
    return (torch.arange(1, num_tokens + 1) >> bits[:, None]) % 2 == 1


def _still(responses: Tensor) -> Tensor:
    strongest = responses.amax(dim=0)
    return strongest <= STILL * strongest.max()


def _in_order(responses: Tensor, codes: Tensor) -> bool:
    """Return whether each token that moves does so more with its own sets than with the others, (k, M) and (k, N)."""
    codes = torch.nn.functional.pad(codes, (max(0, responses.shape[1] - codes.shape[1]), 0))[:, -responses.shape[1] :]
    within = torch.where(codes, responses, torch.inf).amin(dim=0)
    without = torch.where(codes, 0.0, responses).amax(dim=0)
    new = ~codes.any(dim=0)  # tokens that were added in front, as a class token before class attention
    still = _still(responses)
    return bool((still | (~new & (within > without))).all())


def _sources(responses: Tensor, others: Tensor, codes: Tensor) -> Tensor | None:
    """Return which token stands at each place, (M,), -1 for new ones; None if tokens are mixed or some are missing.

    Args:
        responses: How much each place moves with each set, (k, M).
        others: How much it moves with all tokens outside of the set, (k, M).
        codes: The sets, (k, N).
    """
    still = _still(torch.cat([responses, others]))
    high, low = torch.maximum(responses, others), torch.minimum(responses, others)
    clear = (high > CLEAR * low).all(dim=0)
    places = 2 ** torch.arange(len(codes))
    sources = torch.where(still, -1, reduce((responses > others) * places[:, None], "k m -> m", "sum") - 1)
    expected = torch.arange(codes.shape[1])[-int((~still).sum()) :]
    if not (clear | still).all() or not torch.equal(sources[~still].sort().values, expected):
        return None
    return sources
