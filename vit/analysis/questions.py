"""The questions that ``python -m vit.analysis`` answers about a model. Each answer has a control."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from vit.analysis import charts
from vit.analysis.accuracy import accuracy
from vit.analysis.curve import pruning_curve
from vit.analysis.head_table import HeadTable
from vit.analysis.heads import describe_heads
from vit.analysis.importance import ablation_importance, head_importance, weight_importance
from vit.analysis.places import position_accuracies
from vit.analysis.probes import Probe, probe_layers
from vit.analysis.projections import projection_ranks
from vit.analysis.pruning import prune_heads
from vit.analysis.rarity import rare_attention
from vit.analysis.trained_model import TrainedModel
from vit.analysis.truncation import truncation_curve

TRUNCATED = 256  # test images whose attention is cut; each image and head takes an eigendecomposition
CONTROLS = 3  # random draws of heads
PICTURES = tuple(
    f"{name}.png"
    for name in (
        *("kinds", "distances", "offsets", "pruning", "layers"),
        *("truncation", "ranks", "probes", "rare", "positions"),
    )
)
NOTICEABLE = 0.1  # smallest difference of two rank correlations that counts; a convention


@dataclass
class Answer:
    """The answer to a question."""

    found: str  # the result, in sentences
    control: str  # what to compare it with, in sentences
    pictures: dict[str, str] = field(default_factory=dict)  # the name of each picture file, and what it shows
    # For each column of the table of heads, a value per layer and head.
    columns: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def what_heads_attend_to(subject: TrainedModel, folder: Path) -> Answer:
    """Describe all heads. The heads of the untrained model are the control."""
    images = subject.held_out.images
    trained, untrained = (describe_heads(model, images) for model in (subject.model, subject.untrained))
    charts.draw_kinds(trained, folder / "kinds.png")
    charts.draw_distances(trained, folder / "distances.png")
    charts.draw_offsets(trained, folder / "offsets.png")
    return Answer(
        f"{_kinds(trained)} On average, a head attends {_distance(trained):.1f} pixels away; uniform attention is "
        f"{trained.uniform_distance:.1f} pixels away.",
        f"Before training: {_kinds(untrained)} The average is {_distance(untrained):.1f} pixels.",
        {
            "kinds.png": "The kind of each head, by layer, with the entropy of its attention",
            "distances.png": "Mean attention distance of each head over the layers",
            "offsets.png": "Mean attention of each head at each offset, the querying patch in the middle",
        },
        _columns_of(trained),
    )


def _kinds(table: HeadTable) -> str:
    kinds = [head.kind for head in table.heads]
    counts = [f"{kinds.count(kind)} {kind}" for kind in charts.KIND_COLORS]
    return f"Of {len(kinds)} heads, {', '.join(counts[:-1])} and {counts[-1]}."


def _distance(table: HeadTable) -> float:
    return mean(head.distance for head in table.heads)


def _columns_of(table: HeadTable) -> dict[str, list[list[object]]]:
    rows = table.to_rows()
    layers = [[row for row in rows if row["layer"] == layer] for layer in range(1 + max(row["layer"] for row in rows))]
    names = [name for name in rows[0] if name not in ("layer", "head", "offset")]
    columns = {name: [[row[name] for row in of_layer] for of_layer in layers] for name in names}
    offsets = [[row["offset"] for row in of_layer] for of_layer in layers]
    for axis, name in enumerate(("offset_down", "offset_right")):
        columns[name] = [[offset[axis] for offset in of_layer] for of_layer in offsets]
    return columns


def how_many_heads_can_go(subject: TrainedModel, folder: Path) -> Answer:
    """Prune heads in four orders, and measure accuracy and speed."""
    curves = {
        order: pruning_curve(subject.model, subject.batches, subject.ranking, order, rerank=False)
        for order in ("importance", "oracle", "weight", "random")
    }
    charts.draw_pruning(curves, folder / "pruning.png")
    full, random = curves["random"][0], curves["random"]
    left = min((point.heads_left for point in random), key=lambda count: abs(count - full.heads_left / 2))
    at_half = {order: next(point for point in points if point.heads_left == left) for order, points in curves.items()}
    fewest = min(point.heads_left for point in curves["importance"] if point.accuracy >= full.accuracy - 0.01)
    at_random = _without_random_heads(subject, random[-1].removed, full.heads_left - left)
    images, labels = subject.ranking
    return Answer(
        f"With all {full.heads_left} heads the model is right on {_percent(full.accuracy)}. Without those of the "
        f"least gradient of their gate, {left} heads left, it is right on {_percent(at_half['importance'].accuracy)}, "
        f"and {at_half['importance'].speedup:.2f} times as fast; ranked by the rise of the loss without them on "
        f"{_percent(at_half['oracle'].accuracy)}, by the size of weights on {_percent(at_half['weight'].accuracy)}. By "
        f"the gradient, {full.heads_left - fewest} heads can go for at most one point of accuracy. Heads are ranked "
        "once, and nothing is trained in between.",
        f"With {left} random heads left, it is right on {_percent(at_random)} (mean of {CONTROLS} draws); "
        f"without any head on {_percent(random[-1].accuracy)}.",
        {"pruning.png": "Accuracy as heads are removed in four orders, and over the measured speed"},
        {
            "importance_gate": _listed(head_importance(subject.model, images, labels)),
            "importance_ablation": _listed(ablation_importance(subject.model, images, labels)),
            "importance_weight": _listed(weight_importance(subject.model)),
        },
    )


def which_layers_need_their_heads(subject: TrainedModel, folder: Path) -> Answer:
    """Prune the heads of one layer at a time."""
    curves = {
        layer: pruning_curve(
            subject.model, subject.batches, subject.ranking, step=max(1, heads // 4), rerank=False, layers=[layer]
        )
        for layer, heads in enumerate(map(len, weight_importance(subject.model)))
    }
    charts.draw_layers(curves, folder / "layers.png")
    full = curves[0][0]
    without = {layer: points[-1].accuracy for layer, points in curves.items()}
    needed, spared = min(without, key=without.__getitem__), max(without, key=without.__getitem__)
    count = len(curves[needed][-1].removed[needed])
    every = {layer: points[-1].removed[layer] for layer, points in curves.items()}
    anywhere = _without_random_heads(subject, every, count)
    return Answer(
        f"Layer {needed} needs its attention most: without its {count} heads, accuracy falls from "
        f"{_percent(full.accuracy)} to {_percent(without[needed])}. Layer {spared} needs it least: "
        f"{_percent(without[spared])} are left.",
        f"Without {count} random heads of all layers, {_percent(anywhere)} are left (mean of {CONTROLS} draws).",
        {"layers.png": "Accuracy as the heads of one layer are removed, for each layer"},
    )


def _without_random_heads(subject: TrainedModel, every: Mapping[int, Sequence[int]], count: int) -> float:
    """Return the accuracy without ``count`` of these heads, drawn at random: the mean of several draws."""
    heads = [(layer, head) for layer, of_layer in every.items() for head in of_layer]
    accuracies = []
    for seed in range(CONTROLS):
        drawn: dict[int, list[int]] = {}
        for i in torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed))[:count].tolist():
            drawn.setdefault(heads[i][0], []).append(heads[i][1])
        accuracies.append(accuracy(prune_heads(subject.model, drawn), *subject.held_out))
    return mean(accuracies)


def is_attention_low_rank(subject: TrainedModel, folder: Path) -> Answer:
    """Cut attention to several ranks, and measure accuracy."""
    images, labels = subject.held_out.images[:TRUNCATED], subject.held_out.labels[:TRUNCATED]
    tokens = subject.model.embed(images[:1]).shape[1]
    ranks = [*(2**power for power in range(round(math.log2(tokens)))), tokens]
    points = truncation_curve(subject.model, images, labels, ranks)

    def uniform_where_cut(_: int, attn: Tensor) -> Tensor:
        # Attention pooling has one query, so its rank is already 1.
        return attn if attn.shape[-2] == 1 else torch.full_like(attn, 1 / attn.shape[-1])

    uniform = accuracy(subject.model, images, labels, uniform_where_cut)
    charts.draw_truncation(points, uniform, folder / "truncation.png")
    full = points[-1].accuracy
    enough = next(point for point in points if point.accuracy >= full - 0.01)
    return Answer(
        f"With the attention of every image, head and layer cut to rank {enough.rank} of {tokens}, the model is right "
        f"on {_percent(enough.accuracy)} of {len(images)} images, and on {_percent(full)} with nothing cut.",
        f"A random subspace of the same {enough.rank} dimensions leaves {_percent(enough.random_accuracy)}; uniform "
        f"attention, which has rank 1, {_percent(uniform)}; the best rank 1 {_percent(points[0].accuracy)}.",
        {"truncation.png": "Accuracy over the rank of attention, beside random subspaces and uniform attention"},
    )


def are_projections_low_rank(subject: TrainedModel, folder: Path) -> Answer:
    """Compare the effective ranks of the projections after and before training."""
    trained, untrained = projection_ranks(subject.model), projection_ranks(subject.untrained)
    charts.draw_ranks(trained, untrained, folder / "ranks.png")
    width = trained[0].shared_query_key.numel()
    after, before = (
        [mean(layer.effective_ranks()[name].item() for layer in ranks) for name in charts.RANKS]
        for ranks in (trained, untrained)
    )
    return Answer(
        f"Of {width} dimensions, queries and keys of all heads together use {after[0]:.1f}, values and outputs "
        f"{after[1]:.1f} (effective rank, the mean over layers).",
        f"Before training these were {before[0]:.1f} and {before[1]:.1f}. Only what is lower after training is "
        "evidence that heads have dimensions in common.",
        {"ranks.png": "Effective rank of the projections of each layer, before and after training"},
    )


def what_layers_and_heads_keep(subject: TrainedModel, folder: Path) -> Answer:
    """Read class, colour and place from the tokens of each layer, and from each head."""
    trained, untrained = (
        probe_layers(model, subject.trained_on, subject.held_out) for model in (subject.model, subject.untrained)
    )
    charts.draw_probes(trained, untrained, folder / "probes.png")
    first, last, control = trained.layers[0], trained.layers[-1], untrained.layers[-1]
    return Answer(
        f"After the last layer, linear probes read {_read(last)}. Before the first layer they read {_read(first)}.",
        f"After the last layer of the untrained model they read {_read(control)}. The most frequent class alone is "
        f"right on {_percent(subject.chance)}.",
        {"probes.png": "Probes for class, colour and place after each layer and on each head"},
        {
            f"probe_{name}": [[getattr(probe, name) for probe in heads] for heads in trained.heads]
            for name in ("class_accuracy", "colour", "position")
        },
    )


def _read(probe: Probe) -> str:
    return (
        f"the class from the mean patch of {_percent(probe.class_accuracy)} of the images, the colour of a patch with "
        f"R² {probe.colour:.2f} and its place with R² {probe.position:.2f}"
    )


def do_heads_look_at_rare_patches(subject: TrainedModel, folder: Path) -> Answer:
    """Correlate attention with the rarity of patches."""
    own, others = rare_attention(subject.model, subject.held_out.images)
    charts.draw_rare(own, others, folder / "rare.png")
    above = [values - control for values, control in zip(own, others, strict=True)]
    layer, head = max(
        ((layer, head) for layer, heads in enumerate(above) for head in range(len(heads))),
        key=lambda place: above[place[0]][place[1]].item(),
    )
    many = (torch.cat(above) > NOTICEABLE).sum().item()
    return Answer(
        f"{many} of {len(torch.cat(own))} heads attend more to rare patches than the places explain: the rank "
        "correlation of the attention that a patch gets with its distance from the most similar other patch is more "
        f"than {NOTICEABLE} above the control. Head {head} of layer {layer} is furthest above it, with "
        f"{own[layer][head]:+.2f}; the mean over heads is {torch.cat(own).mean():+.2f}.",
        f"With the rarity of another image, which keeps only the part of the places, these two are "
        f"{others[layer][head]:+.2f} and {torch.cat(others).mean():+.2f}.",
        {"rare.png": "Correlation of attention with rarity for each head, beside that with another image"},
        {"rare_patches": _listed(own), "rare_patches_of_another_image": _listed(others)},
    )


def what_positions_do(subject: TrainedModel, folder: Path) -> Answer:
    """Measure accuracy with exchanged positions, and with enlarged images."""
    found = position_accuracies(subject.model, *subject.held_out)
    charts.draw_positions(found, subject.chance, folder / "positions.png")
    return Answer(
        f"With its own positions the model is right on {_percent(found['own'])}; with the positions of the patches "
        f"shuffled on {_percent(found['shuffled'])}, with one position for all on {_percent(found['mean'])}, and on "
        f"images enlarged 1.5 times, to which the positions are resized, on {_percent(found['larger'])}.",
        f"The most frequent class alone is right on {_percent(subject.chance)}. A model that was trained without "
        "positions may reach more: train one by --model.pos_embed none.",
        {"positions.png": "Accuracy with own, shuffled and equal positions, and on larger images"},
    )


QUESTIONS: dict[str, Callable[[TrainedModel, Path], Answer]] = {
    "What do the heads attend to?": what_heads_attend_to,
    "How many heads can go?": how_many_heads_can_go,
    "Which layers need their heads?": which_layers_need_their_heads,
    "Is attention low-rank?": is_attention_low_rank,
    "Are the projections low-rank?": are_projections_low_rank,
    "What do layers and heads keep?": what_layers_and_heads_keep,
    "Do heads look at rare patches?": do_heads_look_at_rare_patches,
    "What do positions do?": what_positions_do,
}


def ask(question: str, subject: TrainedModel, folder: Path) -> Answer | str:
    """Answer one of the questions, and draw its pictures into the folder. If there is no answer, return the reason."""
    try:
        return QUESTIONS[question](subject, folder)
    except ValueError as error:
        return str(error)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _listed(layers: Sequence[Tensor]) -> list[list[float]]:
    return [layer.tolist() for layer in layers]
