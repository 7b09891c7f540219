"""Finds by experiment what mixes tokens besides the captured attention.

In all captured attention, each token gets weights for itself and for a token of its half alone. One half of the tokens
that enter the first layer is changed, then the other half, then both. If no result before it has the shape (B, N, D),
maps or tokens (N, B, D) are changed. No token may then depend on both halves. This needs no list of functions:
attention that was not intercepted, a convolution or an MLP over tokens all show. The tokens are halved in several ways,
so that any two tokens are once in different halves.

Letters in the einops pattern: k copies of an image, c image channels, y x rows and columns of pixels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import torch
from einops import repeat
from torch import Tensor, nn

from vit.capture.experiments.halves import drawn_half, num_copies, separating_halves
from vit.capture.experiments.identity_pass import IdentityPass, MixedError, MixingPlace
from vit.capture.remedy import CHOOSE_OTHERS

MOST_STARTS = 8  # of the experiment: each linear mixing before the first layer needs another
MOST_ASIDE = 24  # results after the last layer that do not reach the logits, such as those of a log


@torch.inference_mode(False)
@torch.no_grad()
def check_unmixed(
    model: nn.Module, image: Tensor, calls: Sequence[int], num_tokens: int, *, in_short: bool = False
) -> int:
    """Check that nothing mixes tokens but these attention calls.

    Linear mixing is allowed before the first call, as part of the patch embedding, and after the last call, as part of
    the read-out, such as a mean over tokens, but not by weights of each head, (H, N, N). What does not reach the logits
    may mix. Mixing as weak as rounding is not seen (see ``rounding``).

    Args:
        model: A ViT in eval mode.
        image: One image as the model takes it, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number of tokens of an image.
        in_short: Whether tokens are halved in one way only, by chance, as for a second image.

    Returns:
        ``start`` for ``change_halves``: how many results of functions pass before the experiment may change one.

    Raises:
        ValueError: If anything else mixes tokens (the message names the module), or the keys of a call stand in another
            order than its queries.
    """
    start = 0
    if num_tokens < 2:
        return start
    copies = repeat(image, "1 c y x -> k c y x", k=num_copies(num_tokens))
    read_out, aside = None, set[int]()
    for half in [drawn_half(num_tokens)] if in_short else separating_halves(num_tokens):
        for attempt in range(MOST_STARTS):
            try:
                for any_layout in (False, True):
                    layouts = {"half": half, "any_layout": any_layout, "aside": aside}
                    one, mixing = _passed(partial(IdentityPass, model, copies, calls, num_tokens, start, **layouts))
                    read_out = mixing or read_out
                    if one.is_entered:
                        break
            except MixedError as mixed:
                if not mixed.is_embedding or attempt == MOST_STARTS - 1:
                    named = _named(mixed, model, copies, calls, num_tokens, start, half)
                    raise ValueError(_reason(model, named, calls)) from None
                start = mixed.place.number + 1
            else:
                break
    _check_read_out(model, copies, calls, num_tokens, read_out, aside)
    return start


def _passed(make: "partial[IdentityPass]") -> tuple[IdentityPass, MixingPlace | None]:
    """Run the experiment, and add to ``aside`` what mixes tokens after the last layer and does not reach the logits.

    Returns:
        The pass, and the mixing that it returns.
    """
    aside = make.keywords["aside"]
    while True:
        one = make()
        try:
            return one, one.run()
        except MixedError as mixed:
            if mixed.call is not None or len(aside) == MOST_ASIDE or _reaches_logits(make, mixed.place.number):
                raise
            aside.add(mixed.place.number)


def _reaches_logits(make: "partial[IdentityPass]", number: int) -> bool:
    """Return whether the logits change if another result takes the place of this one."""
    logits = []
    for one in (make(), make(spoiled=number)):
        with suppress(MixedError):  # which comes after the logits
            one.run()
        logits.append(one.logits)
    return not torch.equal(*logits)


def _check_read_out(
    model: nn.Module,
    copies: Tensor,
    calls: Sequence[int],
    num_tokens: int,
    mixing: MixingPlace | None,
    aside: set[int],
) -> None:
    """Check that nothing after a linear mixing behind the last call mixes tokens in another way, such as attention.

    What mixing has made depends on both halves of the tokens, so the tokens behind it are changed anew.
    """
    while mixing is not None:
        options = {"is_read_out": True, "aside": aside}
        try:
            _, mixing = _passed(partial(IdentityPass, model, copies, calls, num_tokens, mixing.number + 1, **options))
        except MixedError as mixed:
            raise ValueError(_reason(model, mixed, calls)) from None


@torch.no_grad()
def change_halves(
    model: nn.Module,
    image: Tensor,
    calls: Sequence[int],
    num_tokens: int,
    start: int,
    around: AbstractContextManager[Any],
    reached: Callable[[int], None] = lambda _: None,
) -> None:
    """Pass the copies of ``check_unmixed`` once more, within a context that looks at what the model computes.

    Args:
        model: A ViT in eval mode.
        image: One image as the model takes it, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number of tokens of an image.
        start: What ``check_unmixed`` returned.
        around: The context of the pass.
        reached: Called with the number of each attention call.
    """
    copies = repeat(image, "1 c y x -> k c y x", k=num_copies(num_tokens))
    with suppress(MixedError):  # by what does not reach the logits
        IdentityPass(model, copies, calls, num_tokens, start, reached=reached).run(around)


def _named(
    mixed: MixedError,
    model: nn.Module,
    copies: Tensor,
    calls: Sequence[int],
    num_tokens: int,
    start: int,
    half: Tensor,
) -> MixedError:
    """Return where tokens are mixed, after another look at all results."""
    try:
        IdentityPass(model, copies, calls, num_tokens, start, looks_at_all=True, half=half).run()
    except MixedError as found:
        return found
    return mixed


def _reason(model: nn.Module, mixed: MixedError, calls: Sequence[int]) -> str:
    path = mixed.place.path
    module_in_words = f"{type(model.get_submodule(path)).__name__} {path!r}" if path else "its forward method"
    when = "after the last of" if mixed.call is None else f"before number {calls.index(mixed.call)} of"
    return (
        f"{type(model).__name__} mixes tokens in a way that cannot be intercepted ({module_in_words}, {when} "
        f"{len(calls)} attentions that were seen). It still mixes them when these attentions leave each token to "
        "itself, so it has attention of another kind, uses the weights a second time, or has a convolution or an MLP "
        f"over tokens. If it is attention, write it with scaled_dot_product_attention, or {CHOOSE_OTHERS}"
    )
