"""The answers to "How many heads can go?" and "Which layers need their heads?"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from vit.analysis import charts
from vit.analysis.accuracy import accuracy
from vit.analysis.answer import Answer, listed
from vit.analysis.head_removal import PruningPoint, Shared, pruning_curve
from vit.analysis.importance import weight_importance
from vit.analysis.intervals import Interval, halves, mean_interval_of_draws, paired_difference, percent, together
from vit.analysis.pruning import prune_heads
from vit.analysis.trained_model import TrainedModel

ORDERS = ("importance", "oracle", "weight")
DRAWS = 6  # of random heads
COST = 0.01  # accuracy that may be lost


def how_many_heads_can_go(subject: TrainedModel, folder: Path) -> Answer:
    """Prune heads in four orders, and measure the accuracy."""
    model, batches, ranking, shared = subject.model, subject.batches, subject.ranking, Shared()
    options = {"rerank": False, "rounds": 0, "shared": shared}
    curves = {order: pruning_curve(model, batches, ranking, order, **options) for order in ORDERS}
    draws = [pruning_curve(model, batches, ranking, "random", seed=seed, **options) for seed in range(DRAWS)]
    curves["random"] = _mean_curve(draws)
    charts.draw_pruning(curves, folder / "pruning.png")
    full = curves["importance"][0]
    left = min((point.heads_left for point in curves["random"]), key=lambda count: abs(count - full.heads_left / 2))
    at_half = {order: next(point for point in points if point.heads_left == left) for order, points in curves.items()}
    of_draws = [next(point for point in points if point.heads_left == left) for points in draws]
    gate, ablation, weight = (listed(shared.importance(model, ranking, order)) for order in ORDERS)
    return Answer(
        f"With all {full.heads_left} heads the model is right on {percent(full.accuracy)}. Without those of the "
        f"least gradient of their gate, {left} heads left, it is right on {percent(at_half['importance'].accuracy)}; "
        f"ranked by the rise of the loss without them on {percent(at_half['oracle'].accuracy)}, by the size of weights "
        f"on {percent(at_half['weight'].accuracy)}. {left} heads left are "
        f"{percent(at_half['importance'].parameters / full.parameters)} of the parameters. "
        f"{_can_go(curves['importance'])} Heads are ranked once, and nothing is trained in between.",
        f"With {left} random heads left, it is right on {percent(at_half['random'].accuracy)} (mean of {DRAWS} "
        f"draws), {_apart(at_half['importance'], of_draws)}; without any head on "
        f"{percent(curves['random'][-1].accuracy)}.",
        {"pruning.png": "Accuracy as heads are removed in four orders"},
        {"importance_gate": gate, "importance_ablation": ablation, "importance_weight": weight},
    )


def _mean_curve(curves: Sequence[Sequence[PruningPoint]]) -> list[PruningPoint]:
    """Return the first curve with the mean accuracy of all curves, which removed different heads."""
    return [replace(points[0], accuracy=mean(x.accuracy for x in points)) for points in zip(*curves, strict=True)]


def _can_go(points: Sequence[PruningPoint]) -> str:
    """Say how many heads can go, and what this costs on other images than those that chose the number."""
    chosen, reported = zip(*(halves(torch.tensor(point.right)) for point in points), strict=True)
    least = chosen[0].double().mean() - COST
    place = max(i for i, right in enumerate(chosen) if right.double().mean() >= least)
    cost = paired_difference(reported[0].tolist(), reported[place].tolist())
    gone = points[0].heads_left - points[place].heads_left
    return (
        f"On one half of the images, {gone} heads can go by the gradient for at most one point of accuracy; on the "
        f"other half, this costs {cost.as_points()}."
    )


def _apart(ranked: PruningPoint, at_random: Sequence[PruningPoint]) -> str:
    """Say how far the accuracy in one order is from that in random orders, of which some were drawn."""
    draws = torch.tensor([point.right for point in at_random], dtype=torch.double)
    difference = mean_interval_of_draws(torch.tensor(ranked.right, dtype=torch.double) - draws)
    if not difference.is_clear:
        return f"which cannot be told apart from the order by the gradient ({difference.as_points()} below it)"
    if difference.value < 0:
        above = Interval(-difference.value, -difference.high, -difference.low)
        return f"{above.as_points()} above the order by the gradient"
    return f"{difference.as_points()} below the order by the gradient"


def which_layers_need_their_heads(subject: TrainedModel, folder: Path) -> Answer:
    """Prune the heads of one layer at a time."""
    options = {"rerank": False, "rounds": 0, "shared": Shared()}
    curves = {
        layer: pruning_curve(
            subject.model, subject.batches, subject.ranking, step=max(1, heads // 4), layers=[layer], **options
        )
        for layer, heads in enumerate(map(len, weight_importance(subject.model)))
    }
    full, without = curves[0][0], {layer: points[-1] for layer, points in curves.items()}
    every = {layer: point.removed[layer] for layer, point in without.items()}
    count = max(map(len, every.values()))
    anywhere = _without_random_heads(subject, every, count)
    charts.draw_layers(curves, anywhere, folder / "layers.png")
    return Answer(
        f"With all heads, the model is right on {percent(full.accuracy)}. {_layers_apart(without)}",
        f"Without {count} random heads of all layers, the model is right on {percent(anywhere)} (mean of {DRAWS} "
        "draws).",
        {"layers.png": "Accuracy as the heads of one layer are removed, for each layer"},
    )


def _layers_apart(without: Mapping[int, PruningPoint]) -> str:
    """Say which layers need their heads most and least, as far as these images tell them apart."""
    order = sorted(without, key=lambda layer: without[layer].accuracy)
    comparisons = math.comb(len(order), 2) or 1

    def level_with(layer: int) -> list[int]:
        differences = {x: paired_difference(without[x].right, without[layer].right, comparisons) for x in order}
        return sorted(x for x, difference in differences.items() if x == layer or not difference.is_clear)

    def shares(layers: Sequence[int]) -> str:
        return together([percent(without[layer].accuracy) for layer in layers])

    most, least = level_with(order[0]), level_with(order[-1])
    if order[-1] in most:
        if len(order) == 1:
            return f"Without the heads of its layer 0, it is right on {shares(order)}."
        return (
            f"Layers {together(most)} cannot be told apart: without the heads of one, the model is right "
            f"on {shares(most)}, in this order."
        )
    return f"{_needed(most, 'most', shares(most))} {_needed(least, 'least', shares(least))}"


def _needed(layers: Sequence[int], how: str, left: str) -> str:
    if len(layers) == 1:
        return f"Layer {layers[0]} needs its attention {how}: without its heads, the model is right on {left}."
    return (
        f"Layers {together(layers)} need their attention {how} and cannot be told apart: without the heads of one, "
        f"the model is right on {left}."
    )


def _without_random_heads(subject: TrainedModel, every: Mapping[int, Sequence[int]], count: int) -> float:
    """Return the accuracy without ``count`` of these heads, drawn at random: the mean of several draws."""
    heads = [(layer, head) for layer, of_layer in every.items() for head in of_layer]
    accuracies = []
    for seed in range(DRAWS):
        drawn: dict[int, list[int]] = {}
        for i in torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed))[:count].tolist():
            drawn.setdefault(heads[i][0], []).append(heads[i][1])
        accuracies.append(accuracy(prune_heads(subject.model, drawn), *subject.held_out))
    return mean(accuracies)
