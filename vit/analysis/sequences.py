"""Heads of an encoder-decoder: their importance, and the accuracy while heads of one kind are removed.

The kinds: "encoder" (among image tokens), "decoder" (among written tokens), "cross" (from written to image tokens).

Letters in the einops patterns: b sequences, t tokens, v tokens of the vocabulary, h heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.analysis.batches import in_batches
from vit.capture.experiments.graph import gradients_of
from vit.capture.sequence import KINDS, Kind, run_sequence
from vit.support.checks import check_choice, check_positive_int
from vit.support.precision import at_least_float32

IGNORED = -1  # target of positions that do not count, such as those after the end
Batch = tuple[Tensor, Tensor, Tensor]  # images (B, C, H, W), tokens (B, T) and the next token of each, (B, T)
Without = dict[Kind, list[tuple[int, int]]]  # layer and number of the heads of each kind that are switched off


@dataclass(frozen=True)
class SequencePruningPoint:
    """Measurements of an encoder-decoder without some heads of one kind.

    Attributes:
        heads_left: Number of heads left of this kind.
        removed: Layer and number of each removed head.
        accuracy: Share of sequences with every token predicted correctly, each given the true tokens before it.
        loss: Mean cross-entropy of a token, in nats.
    """

    heads_left: int
    removed: list[tuple[int, int]]
    accuracy: float
    loss: float


def sequence_head_importance(
    model: nn.Module, batch: Batch, *, without: Without | None = None, batch_size: int = 64
) -> dict[Kind, list[Tensor]]:
    """Estimate the importance of each head, as ``head_importance`` does: (H,) for each layer of each kind.

    Args:
        model: An encoder-decoder in eval mode, called as ``model(images, tokens)``.
        batch: Images, tokens, and the next token of each. A next token of -1 does not count.
        without: For each kind, the layer and number of heads to switch off.
        batch_size: Number of sequences in one forward pass.

    Raises:
        ValueError: If attention cannot be captured, or some of it has no gradient, as attention that nothing reads.
    """
    totals: dict[tuple[Kind, int], Tensor] = {}
    for images, tokens, targets in zip(*(in_batches(model, part, batch_size) for part in batch), strict=True):
        gates: dict[tuple[Kind, int], Tensor] = {}

        def gated(kind: Kind, layer: int, attn: Tensor) -> Tensor:
            # Each sequence has its own gate: the absolute value comes before the mean over sequences.
            gate = torch.ones_like(attn[..., 0, 0], requires_grad=True)
            gates[kind, layer] = gate  # noqa: B023 (called within this round of the loop)
            return _switched_off(kind, layer, attn * rearrange(gate, "b h -> b h 1 1"), without or {})

        with torch.enable_grad(), gradients_of(model, "leave out attention that its logits do not depend on"):
            loss = _token_losses(run_sequence(model, images, tokens, edit=gated), targets).sum()
            slopes = torch.autograd.grad(loss, list(gates.values()))
        for place, slope in zip(gates, slopes, strict=True):
            totals[place] = totals.get(place, 0) + reduce(at_least_float32(slope).abs(), "b h -> h", "sum").cpu()
    count = len(batch[0])
    return {kind: [total / count for (of, _), total in totals.items() if of == kind] for kind in KINDS}


def sequence_pruning_curve(
    model: nn.Module,
    batch: Batch,
    ranking: Batch,
    kind: Kind,
    order: Literal["importance", "random"] = "importance",
    *,
    seed: int = 0,
    batch_size: int = 64,
) -> list[SequencePruningPoint]:
    """Remove all heads of one kind one by one, least important first, and measure the model after each step.

    The attention of a removed head is zero. The model is not trained between steps. If ``order`` is "importance", the
    heads left are ranked again after each step.

    Args:
        model: An encoder-decoder in eval mode, called as ``model(images, tokens)``.
        batch: Images, tokens, and the next token of each, to measure on. A next token of -1 does not count.
        ranking: The same for other images, to rank the heads by.
        kind: The heads to remove: "encoder", "decoder" (self-attention) or "cross".
        order: Order of removal: by the gradient of the gate ("importance"), or at random ("random").
        seed: Seed of the random order.
        batch_size: Number of sequences in one forward pass.

    Raises:
        ValueError: If attention cannot be captured, or the model has no heads of this kind.
    """
    check_choice("kind", kind, KINDS)
    check_choice("order", order, ("importance", "random"))
    check_positive_int("batch_size", batch_size)
    scores = sequence_head_importance(model, ranking, batch_size=batch_size)[kind]
    left = [(layer, head) for layer, of_layer in enumerate(scores) for head in range(len(of_layer))]
    if not left:
        raise ValueError(f"{type(model).__name__} has no {kind} attention: choose another kind")
    if order == "random":
        shuffled = torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))
        left = [left[place] for place in shuffled.tolist()]
    removed: list[tuple[int, int]] = []
    points = [_measure(model, batch, kind, removed, len(left), batch_size)]
    while left:
        if order == "importance":
            scores = sequence_head_importance(model, ranking, without={kind: removed}, batch_size=batch_size)[kind]
            left.sort(key=lambda place: scores[place[0]][place[1]].item())
        removed.append(left.pop(0))
        points.append(_measure(model, batch, kind, removed, len(left), batch_size))
    return points


@torch.no_grad()
def _measure(
    model: nn.Module, batch: Batch, kind: Kind, removed: list[tuple[int, int]], heads_left: int, batch_size: int
) -> SequencePruningPoint:
    correct, loss, counted = 0, 0.0, 0
    without: Without = {kind: removed}
    for images, tokens, targets in zip(*(in_batches(model, part, batch_size) for part in batch), strict=True):
        logits = run_sequence(model, images, tokens, edit=lambda *call: _switched_off(*call, without))
        is_right = (logits.argmax(dim=-1) == targets) | (targets == IGNORED)
        correct += is_right.all(dim=1).sum().item()
        loss += _token_losses(logits, targets).sum().item()
        counted += (targets != IGNORED).sum().item()
    return SequencePruningPoint(heads_left, list(removed), correct / len(batch[0]), loss / counted)


def _switched_off(kind: Kind, layer: int, attn: Tensor, without: Without) -> Tensor:
    """Return the attention with the heads in ``without`` set to zero."""
    heads = [head for of, head in without.get(kind, []) if of == layer]
    if not heads:
        return attn
    is_on = torch.ones(attn.shape[1], device=attn.device, dtype=attn.dtype)
    is_on[heads] = 0
    return attn * rearrange(is_on, "h -> h 1 1")


def _token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each token, 0 if it does not count: (B, T, V), (B, T) -> (B, T)."""
    return F.cross_entropy(rearrange(logits.float(), "b t v -> b v t"), targets, ignore_index=IGNORED, reduction="none")
