"""Finds the last norms, if all that the logits read passes them token by token.

Class token and patches may have a norm each, one norm may get some of the tokens, or each token its own call. A head
that reads each token may follow.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from vit.capture.parts.last_tokens import fixes_logits
from vit.capture.parts.order import tokens_of_places
from vit.capture.parts.token_places import KnownTokens, TokenPlace, seen_at, some_tokens_at
from vit.capture.parts.trace import Trace


@torch.no_grad()
def last_norms(
    model: nn.Module, pair: Tensor, trace: Trace, calls: Sequence[int], num_tokens: int, place: TokenPlace
) -> list[KnownTokens]:
    """Return what norms return behind the last place, or before it, with its tokens; none if the logits read more.

    A token may stand at several places, as of a norm that is called for overlapping parts. If it is not the same there
    and the logits read both, there is no one place for it, and none is returned.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        trace: The events of a pass.
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number N of tokens.
        place: What ``last_place`` returned.
    """
    ways = [some_tokens_at(norm, shape, num_tokens, len(pair)) for norm, shape in trace.norms_beside(place)]
    known: list[KnownTokens] = []
    for way in range(max(map(len, ways), default=0)):
        norms = [several[way] for several in ways if way < len(several)]
        found = tokens_of_places(model, pair[:1], calls, num_tokens, partial(seen_at, norms))
        known += [KnownTokens(norms[index], tokens) for index, tokens in found.items()]
    if not known or not _fix_logits(model, known, pair):
        return []
    for norm in _contradicted(model, known, pair[:1]):
        known = [other for other in known if other is not norm]
        if not _fix_logits(model, known, pair):
            return []
    return known


def _fix_logits(model: nn.Module, known: Sequence[KnownTokens], pair: Tensor) -> bool:
    return fixes_logits(model, [norm.place for norm in known], pair)


def _contradicted(model: nn.Module, known: Sequence[KnownTokens], image: Tensor) -> list[KnownTokens]:
    """Return the places with a token that is another one at a later place, as where a norm follows a norm."""
    seen: dict[int, Tensor] = {}
    with seen_at([norm.place for norm in known], lambda index, tokens: seen.update({index: tokens[0].clone()})):
        model(image)
    latest: dict[int, Tensor] = {}
    found = []
    for index in sorted(seen, reverse=True):
        standing = [(token, seen[index][at]) for at, token in enumerate(known[index].tokens.tolist()) if token >= 0]
        if any(token in latest and not _are_equal(latest[token], numbers) for token, numbers in standing):
            found.append(known[index])
        else:
            latest |= dict(standing)
    return found


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other)
