"""Maps from attention, with or without its gradient.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels, l layers, k
classes, r s rows and columns of patches.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from einops import einsum, reduce, repeat
from torch import Tensor

from vit.capture.attention import capture_unchecked, run_intercepted
from vit.capture.interception.eager import as_written
from vit.capture.parts.logits import logits_of
from vit.capture.parts.residual_places import check_passed_once
from vit.explain.maps.rollout import (
    HeadFusion,
    check_layer,
    check_rollout,
    check_start_layer,
    pad_prefix,
    roll,
)
from vit.explain.maps.slope import of_gradients
from vit.explain.maps.subject import Subject
from vit.support.precision import at_least_float32, widest_type


def attention(subject: Subject, *, layer: int = -1, head: int | None = None) -> Tensor:
    """Return how much the read-out tokens attend to each patch in one layer: -> (B, rows, columns).

    ``E_h A_layer[readout, patches]``: the mean over heads, or one head. Token values and the class have no influence.
    If an attention of one query pools the tokens, this is their plain mean, whatever its weights.

    Args:
        subject: Model, images and score.
        layer: Index of the layer, from 0; negative indices count from the end.
        head: Index of the head, from 0; None takes the mean of all heads.
    """
    depth = subject.anatomy.depth
    check_layer(layer, depth)
    subject.check_patches_kept([layer % depth])
    kept = []

    def keep_layer(index: int, attn: Tensor) -> Tensor:
        if index == layer % depth:
            if head is not None and (head not in range(attn.shape[1]) or isinstance(head, bool | float)):
                raise ValueError(f"head ({head}) must be one of {attn.shape[1]} heads, from 0 to {attn.shape[1] - 1}")
            kept.append(reduce(attn, "b h n m -> b n m", "mean") if head is None else attn[:, head])
        return attn

    with torch.no_grad():
        run_intercepted(subject.model, subject.images, keep_layer, subject.anatomy.calls, subject.anatomy.orders)
    return subject.readout_map(kept[0])


def rollout(
    subject: Subject,
    *,
    head_fusion: HeadFusion = "mean",
    discard_ratio: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
) -> Tensor:
    """Return the read-out row of ``attention_rollout``: -> (B, rows, columns).

    Negative weights count as zero, with a warning. The layers are multiplied during the forward pass, so memory holds
    one N x N matrix per image at any depth.

    Args:
        subject: Model, images and score.
        head_fusion: How heads are fused: "mean", "max" or "min".
        discard_ratio: Share of the fused weights that each layer sets to zero, smallest first.
        residual: Weight of the skip connection, from 0 to 1.
        start_layer: First layer to use.
    """
    check_rollout(head_fusion, discard_ratio, residual)
    check_start_layer(start_layer, subject.anatomy.depth)
    subject.check_taken("choose attention, gradient_rollout, relevance or occlusion")
    if residual:
        subject.check_skips()
    rolled = None

    def roll_on(layer: int, attn: Tensor) -> Tensor:
        nonlocal rolled
        if layer >= start_layer:
            rolled = roll(rolled, attn, head_fusion, discard_ratio, residual)
        return attn

    with torch.no_grad():
        run_intercepted(subject.model, subject.images, roll_on, subject.anatomy.calls, subject.anatomy.orders)
    return subject.readout_map(rolled)


@of_gradients
def gradient_rollout(subject: Subject, *, start_layer: int = 0) -> Tensor:
    """Compute the rollout of attention times its gradient: -> (B, rows, columns).

    The matrices ``A_l = normalised((E_h[A * dy/dA])+ + I)``, y the score, are multiplied as in ``attention_rollout``.
    An attention of one query that pools the tokens has no I.

    Args:
        subject: Model, images and score.
        start_layer: First layer to use.
    """
    row, layers = _readout_row(subject, start_layer, _mean_above_zero)
    if subject.anatomy.pooled:
        row = row / reduce(row, "b m -> b 1", "sum").clamp(min=torch.finfo(row.dtype).tiny)
    for attn, gradient in layers:
        mixing = _mean_above_zero(attn, gradient)
        total = 1 + reduce(mixing, "b n m -> b n", "sum")
        share = row / total
        row = share + einsum(share, mixing, "b n, b n m -> b m")
    return subject.as_map(row)


@of_gradients
def relevance(subject: Subject, *, start_layer: int = 0) -> Tensor:
    """Compute the relevance of attention for the score (Chefer et al. 2021, ICCV, eq. 5 and 6): -> (B, rows, columns).

    R starts as I, and each layer adds ``A_l R`` to it, with ``A_l = E_h[(A * dy/dA)+]``. Only attention that raises the
    score y counts. The map leaves out the initial I, which marks only the read-out itself. The clamp comes before the
    mean over heads, so heads cannot cancel each other.

    Args:
        subject: Model, images and score.
        start_layer: First layer to use. In deep models, early layers can outweigh late ones.
    """
    start, layers = _readout_row(subject, start_layer, _mean_of_positive)
    # What layers add is kept apart from the read-out: a small gradient would be lost beside a share of 1 / N.
    added = torch.zeros_like(start)
    for attn, gradient in layers:
        added = added + einsum(start + added, _mean_of_positive(attn, gradient), "b n, b n m -> b m")
    # An attention that pools the tokens is a layer, too: what it reads is part of the map.
    return subject.as_map(start + added if subject.anatomy.pooled else added)


@of_gradients
def legrad(subject: Subject, *, start_layer: int = 0) -> Tensor:
    """Compute LeGrad, the gradient with respect to attention (Bousselham et al. 2025): -> (B, rows, columns).

    In each layer l, the model's own head reads the mean of the layer's tokens as the next layer takes them, which gives
    the score y_l. The map is the mean of ``E_h E_n (dy_l/dA_l)+`` over layers. The gradient is not multiplied by
    attention. What is added to the tokens behind the last layer, such as the output of an adapter, belongs to it.

    Args:
        subject: Model, images and score.
        start_layer: First layer to use.

    Raises:
        ValueError: If the model has no module between its layers and its head, such as a final norm.
    """
    anatomy, parts = subject.anatomy, subject.anatomy.parts
    check_start_layer(start_layer, anatomy.depth)
    subject.check_reads_last()
    if parts.last is None or not parts.layers:
        raise ValueError(
            "legrad needs a module for each layer that takes its tokens (B, N, D), and one after the last, such as a "
            "final norm, with no function that changes tokens on the way: choose 'relevance'"
        )
    if not subject.logits_are_made_of(parts.last):
        raise ValueError(
            f"the logits of {type(subject.model).__name__} do not come from the first module after its last layer "
            "alone, which may belong to another head, and legrad reads each layer there: choose 'relevance'"
        )
    subject.check_patches_kept(range(start_layer, anatomy.depth))
    outputs: list[Tensor] = []
    with torch.enable_grad(), ExitStack() as stack:
        for boundary in [*parts.layers[1:], parts.last]:
            # A copy: the next module may add to the tokens in place.
            stack.enter_context(boundary.seen(lambda tokens: outputs.append(tokens.clone())))
        attentions = capture_unchecked(subject.model, subject.images, subject.anatomy.calls, subject.anatomy.orders)
    check_passed_once(subject.model, outputs, [*parts.layers[1:], parts.last])
    shapes = {tuple(tokens.shape) for tokens in outputs}
    if len(shapes) > 1:
        raise ValueError(
            f"legrad reads the head from every layer, but tokens of the layers of {type(subject.model).__name__} have "
            f"different shapes ({', '.join(map(str, sorted(shapes)))}): choose 'relevance'"
        )
    with torch.enable_grad(), as_written():  # else a checkpoint computes the end again, from the model's own tokens
        scores = reduce(_scores_of_layers(subject, outputs), "l b -> l", "sum").unbind()
    maps = []
    for layer in range(start_layer, anatomy.depth):
        (gradient,) = torch.autograd.grad(scores[layer], attentions[layer], retain_graph=True)
        maps.append(subject.as_map(reduce(at_least_float32(gradient).clamp(min=0), "b h n m -> b m", "mean")))
    return reduce(torch.stack(maps), "l b r s -> b r s", "mean")


def _scores_of_layers(subject: Subject, outputs: list[Tensor]) -> Tensor:
    """Return the score of the mean token of each layer: L of (B, N, D) -> (L, B)."""
    scores = []
    for output in outputs:
        # All tokens are equal, so a head gets the same from the class token as from the mean.
        tokens = repeat(reduce(output, "b n d -> b d", "mean"), "b d -> b n d", n=output.shape[1])
        with subject.anatomy.parts.last.changed(lambda _, tokens=tokens: tokens):
            scores.append(subject.score(logits_of(subject.model(subject.images))))
    return torch.stack(scores)


def _readout_row(
    subject: Subject, start_layer: int, of_pooling: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the read-out row (B, N), and attention and gradient of the layers that multiply it, last layer first.

    If an attention of one query pools the tokens, the row is what ``of_pooling`` makes of its weights and gradient.

    A row times a matrix costs N x N. Multiplying the matrices first would cost N x N x N for the same row. All are
    float32 or wider: in half precision, what a layer adds to a share of 1 / N would be rounded away.
    """
    check_start_layer(start_layer, subject.anatomy.depth)
    subject.check_reads_last()
    subject.check_skips()
    with torch.enable_grad():
        attentions = capture_unchecked(subject.model, subject.images, subject.anatomy.calls, subject.anatomy.orders)
        gradients = torch.autograd.grad(subject.score(attentions.logits).sum(), attentions)
    widest = widest_type(*attentions)
    pairs = [
        (attn.detach().to(widest), gradient.to(widest)) for attn, gradient in zip(attentions, gradients, strict=True)
    ]
    layers = pairs[start_layer : subject.anatomy.depth]
    if subject.anatomy.pooled:
        row = pad_prefix(of_pooling(*pairs[-1]), attentions[0][:, 0])[:, 0]
    else:
        row = subject.score_readout.to(pairs[0][0])
    return row, layers[::-1]


def _mean_of_positive(attn: Tensor, gradient: Tensor) -> Tensor:
    return reduce((attn * gradient).clamp(min=0), "b h n m -> b n m", "mean")


def _mean_above_zero(attn: Tensor, gradient: Tensor) -> Tensor:
    return reduce(attn * gradient, "b h n m -> b n m", "mean").clamp(min=0)
