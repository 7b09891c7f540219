"""Maps from attention and the values that it mixes: a large weight on a short value adds little.

Letters in the einops patterns: b batch, h g heads, n queries, m keys, d channels per head, c channels of a token,
l tokens of the layer below.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.capture.attention_output import AttentionOutput, are_same_tokens, capture_outputs
from vit.capture.checks.added import tokens_agree
from vit.capture.checks.carried import carried_tokens, image_most_unlike_first
from vit.capture.parts.residual_places import check_passed_once
from vit.capture.parts.token_places import Boundary
from vit.explain.maps.rollout import check_layer, check_start_layer, pad_prefix
from vit.explain.maps.subject import Subject


def value(subject: Subject, *, layer: int = -1) -> Tensor:
    """Return the length of the vector that each patch adds to the read-out tokens in one layer: -> (B, rows, columns).

    ``|| sum_h A_nm^h W_O^h v_m^h ||`` for patch m and read-out token n (Kobayashi et al. 2020, EMNLP, with all heads).
    The skip connection and the class have no influence. Whether anything else comes between the attention and its sum
    with the tokens, or behind this, is tested on the first image and the one that differs most from it there. If layers
    are no modules, a gate behind their MLP is not seen.

    Args:
        subject: Model, images and score.
        layer: Index of the layer, from 0; negative indices count from the end.

    Raises:
        ValueError: If the mixed values do not enter a linear layer unchanged.
    """
    anatomy = subject.anatomy
    anatomy.check_in_order()
    check_layer(layer, anatomy.depth)
    layer %= anatomy.depth
    subject.check_patches_kept([layer])
    subject.check_taken("choose attention, relevance or occlusion", layer)
    outputs, _ = _outputs(subject, range(layer, layer + 1), with_residuals=False)
    return subject.readout_map(_norms(outputs[layer]))


def value_rollout(subject: Subject, *, start_layer: int = 0) -> Tensor:
    """Compute the rollout of the vectors that tokens add to each other: -> (B, rows, columns).

    This is ``rollout`` with ``|| sum_h A_nm^h W_O^h v_m^h + [n = m] x_n ||`` in place of attention. Each row is divided
    by its sum. The skip connection x_n counts by its length instead of 1/2 (Kobayashi et al. 2021, EMNLP). The norm
    before an attention is part of the values. MLPs and norms after a skip connection are left out.

    Args:
        subject: Model, images and score.
        start_layer: First layer to use.

    Raises:
        ValueError: As in ``value``, or if no module for each layer takes its tokens.
    """
    anatomy = subject.anatomy
    anatomy.check_in_order()
    check_start_layer(start_layer, anatomy.depth)
    if not anatomy.parts.layers:
        raise ValueError(
            "value_rollout needs a module for each layer that takes its tokens (B, N, D): choose 'rollout'"
        )
    subject.check_taken("choose value, attention, relevance or occlusion")
    subject.check_skips()
    outputs, residuals = _outputs(subject, range(start_layer, anatomy.depth), with_residuals=True)
    rolled = None
    for output, residual in list(zip(outputs, residuals, strict=False))[start_layer:]:
        shares = _shares(output, residual)
        rolled = shares if rolled is None else einsum(shares, rolled, "b n m, b m l -> b n l")
    if anatomy.pooled:
        row = _norms(outputs[-1])
        row = pad_prefix(row / reduce(row, "b n m -> b n 1", "sum"), rolled)
        rolled = einsum(row, rolled, "b n m, b m l -> b n l")
    return subject.readout_map(rolled)


def _outputs(subject: Subject, layers: range, *, with_residuals: bool) -> tuple[list[AttentionOutput], list[Tensor]]:
    """Return what each attention adds, and the tokens that enter each layer, to which it must be added if these count.

    Raises:
        ValueError: If in one of ``layers``, something else comes between the attention and this sum, such as a norm or
            a gate, or after it.
    """
    anatomy, name = subject.anatomy, type(subject.model).__name__
    residuals: list[Tensor] = []
    with ExitStack() as stack:
        for boundary in anatomy.parts.layers:
            stack.enter_context(boundary.seen(lambda tokens: residuals.append(tokens.clone())))
        outputs = capture_outputs(subject.model, subject.images, anatomy.calls)
    calls, parts = anatomy.calls[: anatomy.depth], anatomy.parts
    check_passed_once(subject.model, residuals, parts.layers)
    experiments = _experiments(subject, calls)
    counted = torch.ones_like(subject.readout[0]) if with_residuals else reduce(subject.readout, "b n -> n", "max")
    for layer in layers:
        output = outputs[layer]
        found, streams = output.added_to, [residuals[layer]] if residuals else output.inside
        has_sum = found is not None or subject.without_skip is not None
        is_direct = found is None or any(are_same_tokens(found, tokens) for tokens in streams)
        is_direct |= output.is_scaled_stream and not with_residuals
        moves_otherwise = any(agree[layer] is False for agree, _ in experiments)
        is_carried = all(left[layer] is None or bool(left[layer][counted > 0].all()) for _, left in experiments)
        if not has_sum or not is_direct or moves_otherwise or not is_carried:
            raise ValueError(
                f"layer {layer} of {name} does not add the output of its attention alone and directly to the tokens "
                "that enter the layer (a norm, a gate, a factor or another sum comes first or after it, such as that "
                "with an adapter or an MLP), so what each patch adds is not known: choose attention, rollout, "
                "relevance or occlusion"
            )
    return outputs, residuals


def _experiments(subject: Subject, calls: Sequence[int]) -> list[tuple[list[bool | None], list[Tensor | None]]]:
    """Return for the images that are tested whether tokens move as each attention says, and which leave its layer so.

    These are the first image and the one that differs most from it, or all if layers are no modules.
    """
    model, images, num_tokens, leaving = subject.model, subject.images, subject.anatomy.num_tokens, _leaving(subject)
    numbers = {0, image_most_unlike_first(model, images, calls, leaving, num_tokens)} if leaving else range(len(images))
    tested = [images[number : number + 1] for number in numbers]
    return [
        (tokens_agree(model, image, calls, num_tokens), carried_tokens(model, image, calls, leaving, num_tokens))
        for image in tested
    ]


def _leaving(subject: Subject) -> list[Boundary]:
    """Return where the tokens leave each layer: at the entry of the next one, at the final norm or behind the last."""
    parts = subject.anatomy.parts
    if not parts.layers:
        return []
    behind = Boundary(subject.model.get_submodule(parts.layer_names[-1]), "output")
    return [*parts.layers[1:], parts.last or behind]


def _norms(output: AttentionOutput) -> Tensor:
    """Return the length of the vector that each key adds to each query: (B, N, M)."""
    added = _projected(output)
    # This squares the sum over heads without storing a vector for each pair of tokens.
    products = einsum(added, added, "b h m c, b g m c -> b h g m")
    attn = output.attn.to(added)  # of another type within an autocast of the model
    squares = einsum(attn, attn, products, "b h n m, b g n m, b h g m -> b n m")
    return squares.clamp(min=0).sqrt()


def _shares(output: AttentionOutput, residual: Tensor) -> Tensor:
    """Return the share of each key in each query, skip connection (B, N, C) included: (B, N, N), rows sum to one."""
    added = _projected(output)
    own = einsum(output.attn.diagonal(dim1=-2, dim2=-1).to(added), added, "b h n, b h n c -> b n c")
    norms = _norms(output).diagonal_scatter((residual + own).norm(dim=-1), dim1=-2, dim2=-1)
    return norms / reduce(norms, "b n m -> b n 1", "sum").clamp(min=torch.finfo(norms.dtype).tiny)


def _projected(output: AttentionOutput) -> Tensor:
    """Return the vector that each value adds at a weight of 1: (B, H, M, C)."""
    by_head = rearrange(output.projection, "c (h d) -> h c d", h=output.attn.shape[1])
    return einsum(output.values.to(by_head), by_head, "b h m d, h c d -> b h m c")
