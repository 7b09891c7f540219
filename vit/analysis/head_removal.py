"""Accuracy, loss and speed of a model while its heads are removed step by step."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.analysis.importance import ablation_importance, head_importance, weight_importance
from vit.analysis.modules import attention_modules, check_same_layers, head_count
from vit.analysis.pruning import prune_heads
from vit.capture.checks.capturable import check_capturable
from vit.capture.parts.logits import check_several_classes, logits_of
from vit.support.checks import check_choice, check_positive_int
from vit.support.precision import at_least_float32

Head = tuple[int, int]  # layer, and number of the head in the full model
Order = Literal["importance", "oracle", "weight", "random"]
ROUNDS = 5  # timings of the full and of the pruned model, in turn


@dataclass(frozen=True)
class PruningPoint:
    """Measurements of a model without some of its heads.

    Attributes:
        heads_left: Number of heads left in all layers together.
        removed: For each layer, the removed heads, by their numbers in the full model.
        accuracy: Share of the images that are classified correctly.
        loss: Mean cross-entropy, in nats.
        parameters: Number of parameters of the whole model.
        images_per_second: Speed of inference on the first batch.
        speedup: This speed divided by the speed of the full model. The two models are timed in turn.
        right: Whether each image is classified correctly, in the order of the batches.
    """

    heads_left: int
    removed: dict[int, list[int]]
    accuracy: float
    loss: float
    parameters: int
    images_per_second: float
    speedup: float
    right: tuple[bool, ...]


class Shared:
    """What several curves of one model on the same images share, so that it is measured once.

    Attributes:
        points: The points that were measured, by their removed heads.
        importances: The importance of each head of the full model, by its measure.
    """

    def __init__(self) -> None:
        self.points: dict[frozenset[Head], PruningPoint] = {}
        self.importances: dict[Order, list[Tensor]] = {}

    def importance(self, model: nn.Module, ranking: tuple[Tensor, Tensor], order: Order) -> list[Tensor]:
        """Return one (H,) for each layer of the full model, measured at the first call."""
        if order not in self.importances:
            self.importances[order] = _importance(model, ranking, order)
        return self.importances[order]


def pruning_curve(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    ranking: tuple[Tensor, Tensor],
    order: Order = "importance",
    *,
    step: int | None = None,
    rerank: bool = True,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    rounds: int | None = None,
    shared: Shared | None = None,
) -> list[PruningPoint]:
    """Remove all heads of a model step by step, least important first, and measure the model after each step.

    The model is not trained between steps. Heads are cut out of the weights (see ``prune_heads``). The speed is
    measured, not counted in operations. On small batches it hardly changes (Michel et al. 2019, table 4).

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> images, labels = torch.randn(5, 3, 32, 32), torch.tensor([0, 1, 2, 3, 4])
    >>> points = pruning_curve(model, [(images, labels)], ranking=(images, labels), step=2)
    >>> [point.heads_left for point in points]
    [6, 4, 2, 0]

    Args:
        model: A ViT that ``prune_heads`` can prune, in eval mode.
        batches: Images (B, C, H, W) and labels (B,) to measure on, a list or a loader. Each point iterates over it.
        ranking: Images and labels to rank heads by. If they are also in ``batches``, the accuracy is too high.
        order: The measure of importance: the gradient of the head's gate ("importance"), the rise of the loss without
            the head ("oracle"), the size of its weights ("weight"), or a random number ("random").
        step: Number of heads to remove per step. None removes a tenth of the heads.
        rerank: Whether to rank heads again after every step. The importance of a head depends on the heads left.
        layers: Layers whose heads are removed; all other layers keep their heads. None means all layers.
        seed: Seed of the random order.
        rounds: How often the full and the pruned model are timed. None is 5 times; 0 leaves the speeds NaN.
        shared: What other curves of this model, ``batches`` and ``ranking`` measured; this curve adds to it. Two curves
            of the same layers share at least the full model and the one without heads.

    Raises:
        ValueError: If heads cannot be pruned (see ``prune_heads``), order, step or a layer is invalid, there are no
            batches, or layers that are ranked by the logits are others than the modules that are pruned.
    """
    check_capturable(model)
    check_choice("order", order, get_args(Order))
    counts = [head_count(module) for module in attention_modules(model)]
    chosen = range(len(counts)) if layers is None else layers
    if unknown := [layer for layer in chosen if not 0 <= layer < len(counts)]:
        raise ValueError(f"there is no layer {unknown[0]}: layers are 0 to {len(counts) - 1}")
    left = [(layer, head) for layer in sorted({*chosen}) for head in range(counts[layer])]
    step = max(1, round(len(left) / 10)) if step is None else step
    check_positive_int("step", step, "heads are removed at least one by one")
    removed: list[Head] = []
    rounds, shared, pruned = ROUNDS if rounds is None else rounds, shared or Shared(), model

    def point() -> PruningPoint:
        if (known := frozenset(removed)) not in shared.points:
            left_of_all = sum(counts) - len(removed)
            shared.points[known] = _measure(model, pruned, batches, removed, left_of_all, rounds)
        return shared.points[known]

    points = [point()]
    while left:
        # The orders "weight" and "random" do not depend on the heads left.
        if order == "random" and not removed:
            left = _shuffled(sorted(left), seed)
        elif order != "random" and (not removed or (rerank and order != "weight")):
            scores = _importance(pruned, ranking, order) if removed else shared.importance(model, ranking, order)
            left = _ranked(sorted(left), scores)
        removed, left = removed + left[:step], left[step:]
        pruned = prune_heads(model, _by_layer(removed))
        points.append(point())
    return points


def _importance(model: nn.Module, ranking: tuple[Tensor, Tensor], order: Order) -> list[Tensor]:
    if order == "weight":
        return weight_importance(model)
    scores = (head_importance if order == "importance" else ablation_importance)(model, *ranking)
    check_same_layers(model, ranking[0], [len(layer) for layer in scores])
    return scores


def _shuffled(left: list[Head], seed: int) -> list[Head]:
    generator = torch.Generator().manual_seed(seed)
    return [left[i] for i in torch.randperm(len(left), generator=generator).tolist()]


def _ranked(left: list[Head], scores: list[Tensor]) -> list[Head]:
    """Return the heads left, least important first, from the importance of these heads in each layer."""
    of_left = torch.cat([scores[layer] for layer in _by_layer(left)])
    return [left[i] for i in of_left.argsort(stable=True).tolist()]


def _by_layer(heads: list[Head]) -> dict[int, list[int]]:
    return {layer: sorted(head for of, head in heads if of == layer) for layer in sorted({of for of, _ in heads})}


def _measure(
    full: nn.Module,
    pruned: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    removed: list[Head],
    heads_left: int,
    rounds: int,
) -> PruningPoint:
    device = next(full.parameters()).device
    right, loss, first = [], 0.0, None
    with torch.inference_mode():
        for images, labels in batches:
            images, labels = images.to(device), labels.to(device)
            first = images if first is None else first
            logits = check_several_classes(at_least_float32(logits_of(pruned(images))), "accuracy")
            right += (logits.argmax(dim=-1) == labels).tolist()
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
        if first is None:
            raise ValueError("there are no batches to measure on: give a list or a loader, which can be read again")
        pairs = [(_seconds(full, first), _seconds(pruned, first)) for _ in range(rounds)]
    return PruningPoint(
        heads_left=heads_left,
        removed=_by_layer(removed),
        accuracy=fmean(right),
        loss=loss / len(right),
        parameters=sum(parameter.numel() for parameter in pruned.parameters()),
        images_per_second=len(first) / median(seconds for _, seconds in pairs) if pairs else math.nan,
        speedup=median(full_seconds / seconds for full_seconds, seconds in pairs) if pairs else math.nan,
        right=tuple(right),
    )


def _seconds(model: nn.Module, images: Tensor) -> float:
    _wait(images)
    start = time.perf_counter()
    model(images)
    _wait(images)
    return time.perf_counter() - start


def _wait(images: Tensor) -> None:
    if images.device.type != "cpu":  # an accelerator returns before it has computed
        torch.accelerator.synchronize(images.device)
