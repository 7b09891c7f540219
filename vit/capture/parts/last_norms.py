"""Finds norms behind the last place of all tokens, if all that the logits read passes them token by token.

Class token and patches may have a norm each, one norm may get some of the tokens, or each token its own call.
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
    """Return what norms return behind a place, with its tokens; none if the logits read anything else.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        trace: The events of a pass.
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number N of tokens.
        place: What ``last_place`` returned.
    """
    ways = [some_tokens_at(norm, shape, num_tokens, len(pair)) for norm, shape in trace.norms_after(place)]
    known: list[KnownTokens] = []
    for way in range(max(map(len, ways), default=0)):
        norms = [several[way] for several in ways if way < len(several)]
        found = tokens_of_places(model, pair[:1], calls, num_tokens, partial(seen_at, norms))
        known += [KnownTokens(norms[index], tokens) for index, tokens in found.items()]
    return known if known and fixes_logits(model, [norm.place for norm in known], pair) else []
