"""Finds the last tokens: a place after all layers whose tokens are all that the logits read.

The tokens there are exchanged for those of another image. If the logits are then those of the other image, they read
nothing else: no tokens of an earlier layer, and no pixels. The numbers at a place are tokens if none of them depends on
two tokens when all captured attention is the identity.

Letters in the einops patterns: k images, n tokens.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.capture.checks.mixing import change_halves
from vit.capture.experiments.halves import is_unmixed, num_copies
from vit.capture.experiments.moved import are_equal, moved_by_images
from vit.capture.experiments.results_after import ResultsAfter
from vit.capture.interception.eager import as_written
from vit.capture.interception.head_order import intercept
from vit.capture.parts.logits import result_of
from vit.capture.parts.token_places import KnownTokens, TokenPlace, changed_at, tokens_at
from vit.capture.parts.trace import Trace

MOST_TRIED = 12  # places after the last attention
MOST_RESULTS = 48  # of functions after the last attention


@torch.no_grad()
def last_place(
    model: nn.Module, pair: Tensor, trace: Trace, calls: Sequence[int], num_tokens: int, num_prefix: int, start: int
) -> KnownTokens | None:
    """Return the latest place that holds the last tokens, all of them (B, N, D) or the patches alone, or None.

    It is the input or the output of a module, or what a norm returns. Its tokens are taken to stand in order.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        trace: The events of a pass.
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number N of tokens.
        num_prefix: Number of tokens before the patches.
        start: What ``check_unmixed`` returned.
    """
    counts = {num_tokens, num_tokens - num_prefix}
    behind = (tokens_at(place, shape, counts, len(pair)) for place, shape in trace.behind_layers())
    places = [place for place in behind if place is not None][: -MOST_TRIED - 1 : -1]
    seen: dict[int, Tensor] = {}
    with ExitStack() as looks:
        for number, place in enumerate(places):
            looks.enter_context(place.seen(partial(_keep, seen, number)))
        change_halves(model, pair[:1], calls, num_tokens, start, looks)
    unmixed = [number for number in sorted(seen) if num_tokens < 2 or is_unmixed(seen[number])]
    usual = moved_by_images(model, pair)
    found = next((number for number in unmixed if fixes_logits(model, places[number], pair, usual)), None)
    return None if found is None else KnownTokens(places[found], torch.arange(num_tokens)[-seen[found].shape[1] :])


@torch.no_grad()
def fixes_logits(
    model: nn.Module, places: TokenPlace | Sequence[TokenPlace], pair: Tensor, usual: Tensor | None = None
) -> bool:
    """Return whether images (B, C, H, W) have equal logits if all get the tokens of the first at a place.

    If the place is passed several times, the answer is no, because the first time would be changed too.

    Args:
        model: A ViT in eval mode.
        places: The place, or several, at all of which the tokens are exchanged.
        pair: The images.
        usual: What ``moved_by_images`` returns for them; None computes it.
    """
    several = [places] if isinstance(places, TokenPlace) else places
    passed: list[int] = []

    def of_first(index: int, tokens: Tensor) -> Tensor:
        passed.append(index)
        return tokens[:1].expand_as(tokens).clone()  # to which a layer may add in place

    with as_written(), changed_at(several, of_first):
        logits = result_of(model(and_first(pair)))
    usual = moved_by_images(model, pair) if usual is None else usual
    return sorted(passed) == [*range(len(several))] and are_equal(logits, usual)


@torch.no_grad()
def last_result(
    model: nn.Module, pair: Tensor, calls: Sequence[int], last: int, num_tokens: int, start: int
) -> int | None:
    """Return the number of the latest result of a function after attention call ``last`` that holds the last tokens.

    This is for models in which no module has them, such as one whose forward method adds up everything itself.
    ``ResultsAfter`` numbers the results. A single token has the number 0, which is no result.
    """
    if num_tokens < 2:
        return 0
    seen: dict[int, Tensor] = {}

    def look(number: int, result: Tensor) -> Tensor:
        copies = by_image(result, num_copies(num_tokens))
        if copies is not None and len(seen) < MOST_RESULTS:
            _keep(seen, number, copies)
        return result

    looking = ResultsAfter(last, look)
    change_halves(model, pair[:1], calls, num_tokens, start, looking, looking.reached)
    usual = moved_by_images(model, pair)
    latest_first = (number for number in sorted(seen, reverse=True) if is_unmixed(seen[number]))
    return next(
        (number for number in latest_first if result_fixes_logits(model, pair, last, number, num_tokens, usual)), None
    )


@torch.no_grad()
def result_fixes_logits(
    model: nn.Module, images: Tensor, last: int, number: int, num_tokens: int, usual: Tensor | None = None
) -> bool:
    """Return whether images (B, C, H, W) have equal logits if all get a result of a function of the first.

    ``last_result`` returns its number, and ``moved_by_images`` what is ``usual``; None computes this.
    """
    given = and_first(images)
    if len(given) == num_tokens:  # an axis of this size could count either
        given = and_first(given)

    def of_first(seen: int, result: Tensor) -> Tensor:
        by_images = by_image(result, len(given))
        if seen != number or by_images is None:
            return result
        same = repeat(by_images[0], "... -> k ...", k=len(given))
        return same if len(result) == len(given) else rearrange(same, "k n ... -> n k ...")

    usual = moved_by_images(model, images) if usual is None else usual
    return are_equal(logits_within(model, given, ResultsAfter(last, of_first)), usual)


@torch.no_grad()
def pooled_row_fixes_logits(model: nn.Module, pair: Tensor, last: int) -> bool:
    """Return whether images have equal logits if the weights of call ``last``, which pools the tokens, are zero.

    If so, the logits read nothing but what it pools.
    """

    def without(call: int, attn: Tensor) -> Tensor:
        return torch.zeros_like(attn) if call == last else attn

    three = and_first(pair)
    with intercept(model, three, without):
        logits = result_of(model(three))
    return are_equal(logits, moved_by_images(model, pair))


def and_first(pair: Tensor) -> Tensor:
    """Return images and the first of them again: (B, C, H, W) -> (B + 1, C, H, W)."""
    return torch.cat([pair, pair[:1]])  # the first image twice: its two results differ by rounding alone


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.detach().clone()  # a model may change them in place


def logits_within(model: nn.Module, images: Tensor, results: ResultsAfter) -> Tensor:
    """Return the logits of images (B, C, H, W), computed within ``results``."""

    def unchanged(call: int, attn: Tensor) -> Tensor:
        results.reached(call)
        return attn

    with intercept(model, images, unchanged), results:
        return result_of(model(images))


def by_image(result: Tensor, count: int) -> Tensor | None:
    """Return a result with the axis of images first, or None if neither of its first two axes counts them."""
    if result.shape[:1] == (count,):
        return result
    return rearrange(result, "n k ... -> k n ...") if result.shape[1:2] == (count,) else None
