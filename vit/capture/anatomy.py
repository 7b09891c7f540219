"""Finds the parts of a ViT: its grid of patches, its layers, and the tokens that its logits are computed from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from einops import reduce
from torch import Tensor, nn

from vit.capture.attention import projected_attentions
from vit.capture.checks.alone import check_alone, check_logits_alone
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.checks.dependence import check_in_a_row
from vit.capture.checks.entry import enters_as_tokens, passes_last_layer
from vit.capture.checks.first_layer import check_first_layer
from vit.capture.checks.maximum import takes_maximum
from vit.capture.checks.mixing import check_unmixed
from vit.capture.checks.places import check_places, no_patches_error
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import moved_by_images, two_of
from vit.capture.parts.footprint import find_cells
from vit.capture.parts.last_norms import last_norms
from vit.capture.parts.last_tokens import last_place, last_result, pooled_row_fixes_logits
from vit.capture.parts.logits import result_of
from vit.capture.parts.order import AFTER_LAYERS, check_last_rows, check_same_orders, token_orders
from vit.capture.parts.patches import Layout, find_patches
from vit.capture.parts.read_shares import Reading
from vit.capture.parts.residual_places import end_of_stream, enter_as_they_leave, hold_residual_stream
from vit.capture.parts.token_places import seen_at, seen_norms
from vit.capture.parts.trace import Parts, Trace, find_parts, trace_forward
from vit.capture.remedy import CHOOSE_OTHERS

MOVED = 0.25  # share of the pixels that belong to other patches of another image
VARIES = 1e-5  # of the largest share: how much two images may differ by rounding


class ContradictionError(ValueError):
    """The given grid or number of prefix tokens contradicts the model. No other method would help."""


@dataclass(frozen=True)
class Anatomy:
    """The parts of a ViT.

    Attributes:
        grid: Rows and columns of patches.
        num_prefix_tokens: Tokens before the patches: class token, distillation token, registers.
        num_tokens: Number of all tokens of an image.
        calls: Numbers of the attention calls that influence the logits. All other calls are left out.
        num_calls: Number of all attention calls.
        depth: Number of layers. A last attention with one query, which pools the tokens, is not counted.
        pooled: Whether an attention with one query pools the tokens after the last layer.
        parts: The layers, and the places just before and after them.
        cells: The patch that each pixel belongs to, row by row from 0, or -1 if the model never sees it, (H, W).
        orders: For each call whose tokens are in another order: their places, in the order of the first layer.
        reading: Where the logits read the tokens.
        last_result: Number of the result of a function that holds the last tokens, if no module does; else None.
        fixed_readout: ``readout``, or None if the logits read different tokens for different images.
        readout_varies: Whether the shares of the read tokens differ between images; ``readout`` is then a mean of two.
        reads_more: Whether the logits read anything but the last tokens, such as tokens of an earlier layer.
        enters_otherwise: Whether the logits read anything of an image but the tokens that enter the first layer.
        model: Name of the model's class.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    num_tokens: int
    calls: tuple[int, ...]
    num_calls: int
    depth: int
    pooled: bool
    parts: Parts
    cells: Tensor
    orders: Mapping[int, Tensor]
    reading: Reading
    last_result: int | None
    fixed_readout: Tensor | None
    readout_varies: bool
    reads_more: bool
    enters_otherwise: bool
    model: str

    @property
    def patches(self) -> slice:
        """The positions of the patches among the tokens."""
        return slice(self.num_prefix_tokens, self.num_prefix_tokens + self.grid[0] * self.grid[1])

    @property
    def readout(self) -> Tensor:
        """Share of each token in the logits, (N,): the norm of their Jacobian with respect to the last tokens.

        The shares sum to one. If only the class token is read, it has share 1. Each of N averaged tokens has share
        1 / N. The tokens with a share are the read-out tokens. If an attention of one query pools them, they have equal
        shares here, and rollout and relevance multiply by its weights. The shares in more than 1,024 logits are
        estimated, and right to about one percent.

        The last tokens are those behind the final norm, even if it is called for some tokens at a time, such as for the
        class token and for the patches. It is a module, or a norm of torch. If a token is read that no norm returns, a
        norm that is neither, or one that is called for each image, the last tokens are those before it: a norm divides
        each by its length, so that long tokens then have smaller shares. If no module takes these, as in a model of
        functions, the last tokens are the rows of the last attention, unless all tokens have the same share.

        Raises:
            ValueError: If the logits read different tokens for different images, as a maximum over tokens does, or
                anything but the last tokens.
        """
        self.check_reads_last()
        if self.fixed_readout is None:
            raise self.varying_readout_error()
        return self.fixed_readout

    def varying_readout_error(self) -> ValueError:
        """Return the error of a model whose logits read different tokens for different images."""
        return ValueError(
            f"{self.model} reads other tokens for each image, as a maximum over tokens does, so no row of its "
            "attention is read out: choose occlusion, token_drop, input_gradient, integrated_gradients or smoothgrad"
        )

    def check_reads_last(self) -> None:
        """Raise a ValueError if the logits read more than the first and the last tokens, which attention connects."""
        if self.reads_more:
            raise ValueError(
                f"the logits of {self.model} read more than its last tokens, such as tokens of an earlier layer, of a "
                "second stream or pixels, or its last layer mixes tokens beside its attention, or they are never in "
                "one tensor, so no row of attention leads to all: choose occlusion, input_gradient, "
                "integrated_gradients or smoothgrad, or read the weights alone by capture_attention"
            )
        if self.enters_otherwise:
            raise ValueError(
                f"the logits of {self.model} read more of an image than the tokens that enter its first attention, as "
                "with a branch beside its layers, values that are mixed before they are weighed, or tokens that are "
                "written into a buffer, so its attention may not show all that moves from patch to patch: choose "
                "occlusion, input_gradient, integrated_gradients or smoothgrad, or read the weights alone by "
                "capture_attention"
            )

    def check_in_order(self) -> None:
        """Raise a ValueError if the tokens of a layer are in another order than those of the first."""
        if self.orders or self.reading.order is not None:
            raise ValueError(
                f"{self.model} moves its tokens between its layers, and here they are read by their place: choose "
                "attention, rollout, relevance or legrad, for which the order is undone"
            )


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Return rows and columns of patches, from the first module that has a ``patch_stride`` or ``patch_size``.

    Raises:
        ValueError: If no module has either, or the size does not divide the images.
    """
    for module in model.modules():
        size = getattr(module, "patch_stride", None) or getattr(module, "patch_size", None)
        if size is None:  # vit-pytorch cuts patches with an einops layer
            axes = getattr(module, "axes_lengths", {})
            size = (axes["p1"], axes["p2"]) if {"p1", "p2"} <= set(axes) else None
        if isinstance(size, int):
            size = (size, size)
        if isinstance(size, tuple | list) and len(size) == 2:
            rows, columns = images.shape[-2:]
            if rows % size[0] or columns % size[1]:
                raise ValueError(
                    f"images of {rows} x {columns} pixels are no whole number of patches of {size[0]} x {size[1]}: "
                    "resize them, or give grid=(rows, columns)"
                )
            return rows // size[0], columns // size[1]
    raise ValueError(f"{type(model).__name__} does not say its patch_size: give grid=(rows, columns)")


def _check_passes(model: nn.Module, pair: Tensor) -> tuple[Trace, tuple[int, ...], int]:
    """Check that two images pass a model one attention after another, and each as if it were alone.

    Returns:
        The events of a pass, the numbers of the attention calls that influence the logits, and the number of all calls.

    Raises:
        ValueError: If attention cannot be captured, is not one after another, or depends on the other image.
    """
    with torch.no_grad():
        several, logits = projected_attentions(model, pair)
        usual = moved_by_images(model, two_of(pair[:1]))
        check_logits_unchanged(model, usual, logits, result_of(model(pair)))
        norms_alone: list[int] = []
        with seen_norms(lambda number, _: norms_alone.append(number)):
            each_alone = [projected_attentions(model, one) for one in pair.split(1)]
    trace, _ = trace_forward(model, pair)
    if len(norms_alone) != len(pair) * len(trace.norms):
        trace.norms.clear()  # a norm is called for each image, so the number of a norm is another in another batch
    if not trace.attentions or len(trace.pooling) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(trace.attentions)} attentions of all tokens and {len(trace.pooling)} of "
            "one query that its logits depend on: maps need at least one of all tokens, and read only a single, last "
            f"one of one query, which pools the tokens; {CHOOSE_OTHERS}"
        )
    calls = tuple(event.call for event in (*trace.attentions, *trace.pooling))
    check_in_a_row(model, calls, trace.dependents)
    for row, (alone, of_one) in enumerate(each_alone):
        check_alone(model, several, alone, row, calls)
        check_logits_alone(model, len(pair), usual, logits[row], of_one[0])
    check_places(model, pair[:1], calls[0])
    return trace, calls, len(several)


def _layout(
    model: nn.Module,
    image: Tensor,
    call: int,
    num_tokens: int,
    grid: tuple[int, int] | None,
    num_prefix_tokens: int | None,
) -> Layout:
    """Find by experiment where the patches are. Raise a ValueError if ``grid`` or ``num_prefix_tokens`` disagrees."""
    found, name = find_patches(model, image, call, num_tokens), type(model).__name__
    if found is None:
        raise no_patches_error(model, num_tokens)
    given = Layout(tuple(grid or found.grid), found.first if num_prefix_tokens is None else num_prefix_tokens)
    if given != found:
        raise ContradictionError(
            f"{name} was said to have {given.first} prefix tokens and {given.grid[0]} x {given.grid[1]} patches, but "
            f"changed strips of an image move {found.grid[0]} x {found.grid[1]} patches after {found.first} tokens: "
            "leave out grid and num_prefix_tokens"
        )
    return found


def _check_same_cells(
    model: nn.Module, image: Tensor, call: int, num_tokens: int, layout: Layout, cells: Tensor
) -> None:
    """Raise a ValueError if the patches of another image have other pixels, as if a model crops images by content."""
    other = find_patches(model, image, call, num_tokens)
    # A pixel halfway between two patches may belong to either, by how much each responds to it.
    if other != layout or (find_cells(model, image, call, other) != cells).float().mean() > MOVED:
        raise ValueError(
            f"{type(model).__name__} takes its patches from other pixels of each image, as if it crops or turns images "
            f"by what they show, so no map fits all: do that before the model, or {CHOOSE_OTHERS}"
        )


def _are_even(shares: Tensor) -> bool:
    """Return whether all tokens with a share have the same one: (B, N)."""
    least = torch.where(shares > 0, shares, torch.inf).amin(dim=1)
    return bool((shares.amax(dim=1) - least <= VARIES * least).all())


class _Readout(NamedTuple):
    """What ``Anatomy`` says of the tokens that the logits read."""

    orders: Mapping[int, Tensor]
    reading: Reading
    last_result: int | None
    fixed_readout: Tensor | None
    readout_varies: bool
    reads_more: bool


def _find_reading(
    model: nn.Module, pair: Tensor, trace: Trace, calls: tuple[int, ...], num_tokens: int, num_prefix: int, start: int
) -> _Readout:
    """Find by experiment where the logits read the tokens, and which.

    Args:
        model: A ViT in eval mode.
        pair: Two images as the model takes them, (2, C, H, W).
        trace: The events of a pass.
        calls: Numbers of the attention calls that influence the logits.
        num_tokens: Number of tokens of an image.
        num_prefix: Number of tokens before the patches.
        start: What ``check_unmixed`` returned.
    """
    image, pooled = pair[:1], bool(trace.pooling)
    last, known, result = trace.attentions[-1].call, None, None
    if pooled:
        reads_more = not pooled_row_fixes_logits(model, pair, calls[-1])
    else:
        known = last_place(model, pair, trace, calls, num_tokens, num_prefix, start)
        result = None if known else last_result(model, pair, calls, last, num_tokens, start)
        reads_more = known is None and result is None
    watched = (partial(seen_at, [known.place]),) if known else ()
    orders, of_other = (token_orders(model, each, calls, num_tokens, *watched) for each in pair.split(1))
    check_same_orders(model, orders, of_other)
    order = orders.pop(AFTER_LAYERS, None) if known else orders.get(last)
    if known and order is not None:
        known = replace(known, tokens=known.tokens[order.argsort()])
    reading = Reading(known, last, num_tokens, order)
    shares = reading.shares(model, pair)
    if known and ((shares > 0).sum(dim=1) > 1).any():  # the share of one token is 1 anywhere
        norms = last_norms(model, pair, trace, calls, num_tokens, known.place)
        reading = replace(reading, norms=tuple(norms))
        shares = reading.shares(model, pair) if norms else shares
    if result is not None:
        at_result = replace(reading, result=result)
        exact = at_result.shares(model, pair)
        # The order of tokens in the result of a function is not known. For a mean of tokens, it does not matter.
        if _are_even(exact) and torch.equal(exact > 0, shares > 0):
            reading, shares = at_result, exact
    read = shares > 0
    chooses = not pooled and takes_maximum(model, image, calls, num_tokens, start)
    fixed = None if chooses or not (read[0] == read[1]).all() else reduce(shares, "b n -> n", "mean")
    if pooled and fixed is not None:  # the pooling weighs them
        fixed = (fixed > 0) / (fixed > 0).sum()
    varies = bool((shares[0] - shares[1]).abs().max() > VARIES * shares.max()) and not pooled
    return _Readout(orders, reading, result, fixed, varies, reads_more)


@torch.inference_mode(False)  # a gradient finds the read-out tokens, even if the caller is in inference mode
def examine(
    model: nn.Module, images: Tensor, grid: tuple[int, int] | None = None, num_prefix_tokens: int | None = None
) -> Anatomy:
    """Find the parts of a model, and check that its attention can be captured. Only the first two images are used.

    ``find_patches`` finds by experiment which token is which patch. A given grid or number must agree.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> examine(model, torch.randn(1, 3, 32, 32)).patches
    slice(1, 17, None)

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        grid: Rows and columns of patches, checked against those found; None skips the check.
        num_prefix_tokens: Tokens before the patches, checked against those found; None skips the check.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), attentions run in parallel instead of
            one after another, no grid of patches is found among the tokens, their pixels are no rows and columns of
            cells, or the given grid or number is wrong.
    """
    check_pixels(images)
    check_capturable(model)
    pair = two_of(images)
    image = pair[:1]
    trace, calls, num_calls = _check_passes(model, pair)
    num_tokens = trace.attentions[0].shape[-1]
    start = check_unmixed(model, image, calls, num_tokens)
    check_first_layer(model, image, calls[0])
    if len(calls) == 1:  # no later layer shows in which order its rows stand
        check_last_rows(model, image, calls, num_tokens)
    check_unmixed(model, pair[1:], calls, num_tokens, in_short=True)
    layout = _layout(model, image, calls[0], num_tokens, grid, num_prefix_tokens)
    cells = find_cells(model, image, calls[0], layout)
    _check_same_cells(model, pair[1:], calls[0], num_tokens, layout, cells)
    readout = _find_reading(model, pair, trace, calls, num_tokens, layout.first, start)
    parts, after_layers = find_parts(trace, num_tokens)
    if after_layers:
        leaving = [trace.output_of(name) for name in parts.layer_names]
        parts = replace(parts, last=end_of_stream(model, pair, parts.layers, leaving, after_layers))
    if parts.layers and not (
        enter_as_they_leave(model, image, trace, parts.layers, parts.layer_names)
        and hold_residual_stream(model, pair, calls, parts.layers)
    ):
        parts = Parts(entry=parts.entry, last=parts.last)
    of_all = [event.call for event in trace.attentions]
    reads_more = readout.reads_more or not passes_last_layer(model, pair, of_all, num_tokens, parts.layers)
    return Anatomy(
        grid=layout.grid,
        num_prefix_tokens=layout.first,
        num_tokens=num_tokens,
        calls=calls,
        num_calls=num_calls,
        depth=len(trace.attentions),
        pooled=bool(trace.pooling),
        parts=parts,
        cells=cells,
        orders=readout.orders,
        reading=readout.reading,
        last_result=readout.last_result,
        fixed_readout=readout.fixed_readout,
        readout_varies=readout.readout_varies,
        reads_more=reads_more,
        enters_otherwise=not enters_as_tokens(model, pair, calls, num_tokens, start),
        model=type(model).__name__,
    )
