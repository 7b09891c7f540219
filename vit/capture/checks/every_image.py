"""Checks all images of a batch by a single change of their pixels.

Most experiments look at the first two images alone. A model may treat another one differently: it mirrors images by
what they show, mixes the tokens of bright images, or has skip connections for some images alone. Here one corner of
every image is changed, while each token attends to itself alone. The same tokens must move in all images. Then each
quarter is changed, and no other tokens may move in a later layer. For maps, tokens without any attention must also
follow the image in each layer in which those of the first do.

Letters in the einops patterns: b images, h heads, m keys, d channels of a head.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.checks.alone import check_count
from vit.capture.experiments.identity_pass import own_weights
from vit.capture.experiments.moved import noise_like, rounding, spread_of
from vit.capture.interception.head_order import intercept
from vit.capture.parts.order import Orders
from vit.capture.parts.token_places import TokenPlace
from vit.capture.remedy import CHOOSE_OTHERS
from vit.support.precision import in_double

FAINT = 0.1  # a token that moves less than this share of the largest move is not in the corner
NOISES = 4  # that are tried if other tokens seem to move
QUARTERS = ((), (0,), (1,), (0, 1))  # axes along which the upper left corner is flipped
LEAST_SHARE = 0.5  # of what the tokens in the corner of the first image have of all moves


@torch.no_grad()
def check_every_image(model: nn.Module, images: Tensor, calls: Sequence[int], orders: Orders) -> None:
    """Check that all images (B, C, H, W) move the same tokens as the first one, in every layer.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them. Two or fewer are looked at by all other experiments.
        calls: Numbers of the attention calls that are layers.
        orders: For each call whose tokens are in another order: their places, as in ``Anatomy.orders``.

    Raises:
        ValueError: If an image moves other tokens, or mixes them.
    """
    if len(images) <= 2:
        return
    images = images.detach().clone()
    values_of = partial(_values, model, calls=calls, orders=orders, own=own_weights)
    before = values_of(images)
    _check_corner(model, images, values_of, before[0])
    for turned in QUARTERS:
        _check_unmixed(model, images, values_of, before, calls, turned)


def _check_corner(
    model: nn.Module, images: Tensor, values_of: Callable[[Tensor], list[Tensor]], before: Tensor
) -> None:
    """Raise a ValueError if a change of one corner moves other tokens of an image than of the first one."""

    def moves(seed: int = 0, part: float = 0.5) -> Tensor:
        return _moved(before, values_of(_changed(images, seed, part))[0])

    entering = moves()
    differ = _differ(entering, _moves_much(entering[0]))
    if differ.any():
        # A token of few channels may hardly move by chance, and one behind a ReLU not at all: then it may be in the
        # corner. One that is partly in it is wholly in a corner of twice the size.
        small, corner, whole = (sum(moves(seed, part) for seed in range(NOISES)) for part in (0.25, 0.5, 1.0))
        differ = _differ(small, _moves_much(corner[0]) | ~_moves_much(whole[0]))
    if differ.any():
        raise ValueError(
            f"{type(model).__name__} takes its patches from other pixels of image {int(differ.nonzero()[0, 0])} than "
            "of the first one of the batch, as if it crops or turns images by what they show, so no map fits all: do "
            f"that before the model, or {CHOOSE_OTHERS}"
        )


def _check_unmixed(
    model: nn.Module,
    images: Tensor,
    values_of: Callable[[Tensor], list[Tensor]],
    before: Sequence[Tensor],
    calls: Sequence[int],
    turned: tuple[int, ...],
) -> None:
    """Raise a ValueError if a change of one quarter moves tokens in a later layer that it left as they were before.

    Tokens are as they were if their values are equal to the last bit.
    """
    after = values_of(_changed(images, turned=turned))
    still = reduce(before[0] == after[0], "b h m d -> b m", "all")
    for call, *of_call in zip(calls[1:], before[1:], after[1:], strict=True):
        of_layer = _moved(*of_call)
        count = min(of_layer.shape[1], still.shape[1])  # class attention has one token more, in front
        moved_late = (of_layer[:, -count:] > 0) & still[:, -count:]
        if moved_late.any():  # values behind a ReLU may be zero with any pixels
            whole = _moved(before[0], values_of(_changed(images, part=1))[0])
            moved_late &= whole[:, -count:] > 0
        mixed = moved_late.any(dim=1)
        if mixed.any() and not mixed[0]:  # what the first image shows, other experiments have found
            raise ValueError(
                f"{type(model).__name__} mixes the tokens of image {int(mixed.nonzero()[0, 0])} of the batch beside "
                f"its attention, before attention {call}, and not those of the first: it treats images differently by "
                f"what they show: {CHOOSE_OTHERS}"
            )


@torch.no_grad()
def check_every_skip(
    model: nn.Module, images: Tensor, calls: Sequence[int], orders: Orders, place: TokenPlace | None
) -> None:
    """Check that all images (B, C, H, W) have skip connections where the first has some. See ``check_every_image``.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them.
        calls: Numbers of the attention calls that are layers.
        orders: As in ``check_every_image``.
        place: Where the tokens after the last layer are. If it is None, the last layer is not looked at.

    Raises:
        ValueError: If an image has none beside an attention.
    """
    if len(images) <= 2:
        return
    images = images.detach().clone()
    last: list[Tensor] = []
    with place.seen(lambda tokens: last.append(tokens.detach().clone())) if place else nullcontext():
        before, after = (_values(model, each, calls, orders, torch.zeros) for each in (images, _changed(images)))
    later = [_moved(*values) for values in list(zip(before, after, strict=True))[1:]]
    if len(last) == 2 and len(last[0]) == len(images):  # of the images, and of the changed ones
        later.append(_moved(*(tokens[:, None] for tokens in last)))
    for call, of_layer in zip(calls, later, strict=False):
        follows = (of_layer > 0).any(dim=1)
        if not follows.all() and follows[0]:
            raise ValueError(
                f"{type(model).__name__} has no skip connection beside attention {call} for image "
                f"{int((~follows).nonzero()[0, 0])} of the batch, and one for the first: it treats images differently "
                f"by what they show: {CHOOSE_OTHERS}"
            )


def _moves_much(moves: Tensor) -> Tensor:
    """Return which tokens move much, (M,). A norm over the whole image moves all tokens, those in the corner most."""
    return moves > FAINT * moves.amax()


def _differ(entering: Tensor, in_corner: Tensor) -> Tensor:
    """Return which images (B,) have most of their moves, (B, M), in other tokens than those that may be in the corner.

    These are (M,), by the first image.
    """
    shares = reduce(entering * in_corner, "b m -> b", "sum") / reduce(entering, "b m -> b", "sum")
    return shares < LEAST_SHARE * shares[0]


def _changed(images: Tensor, seed: int = 0, part: float = 0.5, turned: tuple[int, ...] = ()) -> Tensor:
    """Return images whose upper left corner is changed, by the same noise in all, as strong as each image's pixels.

    The corner has this part of the rows and of the columns. It is another one if it is flipped along axes.
    """
    rows, columns = (torch.arange(side, device=images.device) < max(1, int(part * side)) for side in images.shape[-2:])
    corner = (rows[:, None] & columns).flip(turned)
    if not images.is_floating_point():
        return torch.where(corner, images ^ 1, images)
    spreads = images.new_tensor([spread_of(image) for image in images])
    return torch.where(corner, images + rearrange(spreads, "b -> b 1 1 1") * noise_like(images[0], seed), images)


def _values(
    model: nn.Module, images: Tensor, calls: Sequence[int], orders: Orders, own: Callable[[int], Tensor]
) -> list[Tensor]:
    """Return the values (B, H, M, d) of each layer, in the first order, if each token attends to itself alone.

    ``own`` returns the weights (N,) of tokens to themselves, all that attention has meanwhile.
    """
    seen = []

    def alone(call: int, attn: Tensor) -> Tensor:
        if call not in calls:
            return attn
        intercepted.check_all_images(call, attn)
        order = orders.get(call)
        seen.append(intercepted.values if order is None else intercepted.values[..., order, :])
        is_square = attn.shape[-2] == attn.shape[-1]
        return own(attn.shape[-1]).to(attn).diag().expand(attn.shape) if is_square else attn

    intercepted = intercept(model, images, alone)
    with intercepted:
        model(images)
    check_count(model, len(seen), len(images), len(calls))
    return seen


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """Return how much each token moves, 0 if by no more than rounding: values (B, H, M, d) twice -> (B, M)."""
    moves = reduce(in_double(after - before).abs(), "b h m d -> b m", "max")
    return moves * (moves > rounding(torch.stack([before, after, before])))
