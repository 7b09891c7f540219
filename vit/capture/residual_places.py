"""Checks that the tokens at the input of each layer are the residual stream.

Modules may lie side by side: a list of norms, one of attentions, one of MLPs. Then the module of a layer gets tokens
that a norm made for its attention alone, and the stream goes around it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from vit.capture.attention_output import are_same_tokens, watched_outputs
from vit.capture.last_tokens import fixes_logits
from vit.capture.moved import moved_by_images
from vit.capture.trace import Boundary


@torch.no_grad()
def hold_residual_stream(model: nn.Module, pair: Tensor, calls: Sequence[int], layers: Sequence[Boundary]) -> bool:
    """Return whether all these places hold the residual stream.

    A place does if the output of its attention is added to its tokens, or if all that the logits read of an image
    passes through it.

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
    return all(fixes_logits(model, place, pair, usual) for place in unsure)


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.clone()  # it may be changed in place
