"""The questions that ``python -m vit.analysis`` answers about a model. Each answer has a control."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from vit.analysis import cause_charts, charts
from vit.analysis.accuracy import accuracy
from vit.analysis.answer import Answer, listed
from vit.analysis.decision import what_the_decision_rests_on
from vit.analysis.head_table import HeadTable
from vit.analysis.heads import describe_heads
from vit.analysis.intervals import halves, interval_of_share, mean_interval, paired_difference, percent
from vit.analysis.measures import effective_rank
from vit.analysis.needed import COST, how_many_heads_can_go, which_layers_need_their_heads
from vit.analysis.position_dependence import position_accuracies
from vit.analysis.probes import Probe, probe_layers
from vit.analysis.projections import projection_ranks
from vit.analysis.rarity import rare_correlations
from vit.analysis.trained_model import TrainedModel
from vit.analysis.truncation import attention_spectra, truncation_curve

TRUNCATED = 256  # test images whose attention is cut; each image and head takes an eigendecomposition
PICTURES = tuple(
    f"{name}.png"
    for name in (
        *("kinds", "distances", "offsets", "pruning", "layers", "cut", "residual"),
        *("truncation", "spectra", "ranks", "probes", "rare", "positions"),
    )
)
SPECTRA = 64  # test images whose spectra are compared
NOTICEABLE = 0.1  # smallest difference of two rank correlations that counts; a convention


def what_heads_attend_to(subject: TrainedModel, folder: Path) -> Answer:
    """Describe all heads. The heads of the untrained model are the control."""
    images = subject.held_out.images
    trained, untrained = (describe_heads(model, images) for model in (subject.model, subject.untrained))
    charts.draw_kinds(trained, folder / "kinds.png")
    charts.draw_distances(trained, folder / "distances.png", untrained)
    charts.draw_offsets(trained, folder / "offsets.png")
    return Answer(
        f"{_kinds(trained)} On average, a head attends {_distance(trained):.1f} pixels away; uniform attention is "
        f"{trained.uniform_distance:.1f} pixels away.",
        f"Before training: {_kinds(untrained)} The average is {_distance(untrained):.1f} pixels.",
        {
            "kinds.png": "The kind of each head, by layer, with the entropy of its attention",
            "distances.png": "Mean attention distance of each head over the layers, after and before training",
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


def is_attention_low_rank(subject: TrainedModel, folder: Path) -> Answer:
    """Cut attention to several ranks, and compare its spectrum with that of the untrained model."""
    images, labels = subject.held_out.images[:TRUNCATED], subject.held_out.labels[:TRUNCATED]
    tokens = subject.model.embed(images[:1]).shape[1]
    ranks = [*(2**power for power in range(round(math.log2(tokens)))), tokens]
    points = truncation_curve(subject.model, images, labels, ranks)

    def uniform_where_cut(_: int, attn: Tensor) -> Tensor:
        # Attention pooling has one query, so its rank is already 1.
        return attn if attn.shape[-2] == 1 else torch.full_like(attn, 1 / attn.shape[-1])

    uniform = accuracy(subject.model, images, labels, uniform_where_cut)
    charts.draw_truncation(points, uniform, folder / "truncation.png")
    trained, untrained = (attention_spectra(model, images[:SPECTRA]) for model in (subject.model, subject.untrained))
    cause_charts.draw_attention_spectra(trained, untrained, folder / "spectra.png")
    chosen, reported = zip(*(halves(torch.tensor(point.right)) for point in points), strict=True)
    place = next(i for i, right in enumerate(chosen) if right.double().mean() >= chosen[-1].double().mean() - COST)
    enough, cost = points[place], paired_difference(reported[-1].tolist(), reported[place].tolist())
    return Answer(
        f"With the attention of every image, head and layer cut to rank {enough.rank} of {tokens}, the model is right "
        f"on {percent(enough.accuracy)} of {len(images)} images, and on {percent(points[-1].accuracy)} with nothing "
        f"cut. On one half of them, this is the smallest rank that costs at most one point of accuracy; on the other "
        f"half, it costs {cost.as_points()}. {_rank_since_training(trained, untrained)}",
        f"The {enough.rank} largest singular values are {percent(_held(trained, enough.rank))} of their sum, and "
        f"{percent(_held(untrained, enough.rank))} before training. A random subspace of the same {enough.rank} "
        f"dimensions leaves {percent(enough.random_accuracy)}; uniform attention, which has rank 1, "
        f"{percent(uniform)}; the best rank 1 {percent(points[0].accuracy)}.",
        {
            "truncation.png": "Accuracy over the rank of attention, beside random subspaces and uniform attention",
            "spectra.png": "Spectrum and effective rank of attention, before and after training",
        },
    )


def _rank_since_training(trained: Sequence[Tensor], untrained: Sequence[Tensor]) -> str:
    """Say whether training made attention lower in rank, from its spectra (B, H, N) for each layer."""
    after, before = (
        torch.stack([effective_rank(layer).mean(dim=1) for layer in spectra]).mean(dim=0)
        for spectra in (trained, untrained)
    )
    risen = mean_interval(after - before)
    change = "has raised" if risen.value > 0 else "has lowered"
    if not risen.is_clear:
        change = "may not have changed"
    return (
        f"Training {change} the effective rank of attention: it is {after.mean():.1f} (mean over heads and layers), "
        f"and was {before.mean():.1f}; the difference is {risen}."
    )


def _held(spectra: Sequence[Tensor], rank: int) -> float:
    """Return the share of the sum of singular values that the largest hold: the mean over heads, layers and images."""
    return mean(layer[..., :rank].sum(dim=-1).mean().item() for layer in spectra)


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
        f"evidence that heads have dimensions in common: {_lower(after, before)}.",
        {"ranks.png": "Effective rank of the projections of each layer, before and after training"},
    )


def _lower(after: Sequence[float], before: Sequence[float]) -> str:
    """Say what is lower after training; the numbers are compared as they are shown."""
    names = ("queries and keys", "values and outputs")
    lower = [name for name, *pair in zip(names, after, before, strict=True) if round(pair[0], 1) < round(pair[1], 1)]
    return " as well as ".join(lower) or "neither is"


def what_layers_and_heads_keep(subject: TrainedModel, folder: Path) -> Answer:
    """Read class, colour and place from the tokens of each layer, and from each head."""
    trained, untrained = (
        probe_layers(model, subject.trained_on, subject.held_out) for model in (subject.model, subject.untrained)
    )
    charts.draw_probes(trained, untrained, folder / "probes.png")
    count = len(subject.held_out.labels)
    first, last, control = (
        _read(probe, count) for probe in (trained.layers[0], trained.layers[-1], untrained.layers[-1])
    )
    return Answer(
        f"After the last layer, linear probes read {last}. Before the first layer they read {first}.",
        f"After the last layer of the untrained model they read {control}. The most frequent class alone is "
        f"right on {percent(subject.chance)}.",
        {"probes.png": "Probes for class, colour and place after each layer and on each head"},
        {
            f"probe_{name}": [[getattr(probe, name) for probe in heads] for heads in trained.heads]
            for name in ("class_accuracy", "colour", "position")
        },
    )


def _read(probe: Probe, count: int) -> str:
    read = interval_of_share(probe.class_accuracy, count)
    return (
        f"the class from the mean patch of {read.as_percent()} of the images, the colour of a patch with "
        f"R² {probe.colour:.2f} and its place with R² {probe.position:.2f}"
    )


def do_heads_look_at_rare_patches(subject: TrainedModel, folder: Path) -> Answer:
    """Correlate attention with the rarity of patches."""
    correlations = rare_correlations(subject.model, subject.held_out.images)
    pairs = [(halves(own), halves(other)) for own, other in zip(*correlations, strict=True)]
    above = [own[0].mean(dim=0) - other[0].mean(dim=0) for own, other in pairs]  # on the half that chooses
    own, others = ([each[1].mean(dim=0) for each in half] for half in zip(*pairs, strict=True))
    charts.draw_rare(own, others, folder / "rare.png")
    places = [(layer, head) for layer, of_layer in enumerate(above) for head in range(len(of_layer))]
    differences = {(layer, head): pairs[layer][0][1][:, head] - pairs[layer][1][1][:, head] for layer, head in places}
    many = sum(mean_interval(values, len(places)).low > NOTICEABLE for values in differences.values())
    layer, head = max(places, key=lambda place: above[place[0]][place[1]].item())
    return Answer(
        f"{many} of {len(places)} heads attend more to rare patches than the places explain: the rank correlation of "
        "the attention that a patch gets with its distance from the most similar other patch is clearly more than "
        f"{NOTICEABLE} above the control. Head {head} of layer {layer} is furthest above it on one half of the images; "
        f"on the other half, it is above it by {mean_interval(differences[layer, head])}, and its correlation is "
        f"{own[layer][head]:+z.2f}. The mean over heads is {torch.cat(own).mean():+z.2f}.",
        f"With the rarity of another image, which keeps only the part of the places, these two are "
        f"{others[layer][head]:+z.2f} and {torch.cat(others).mean():+z.2f}.",
        {"rare.png": "Correlation of attention with rarity for each head, beside that with another image"},
        {"rare_patches": listed(own), "rare_patches_of_another_image": listed(others)},
    )


def what_positions_do(subject: TrainedModel, folder: Path) -> Answer:
    """Measure accuracy with exchanged positions, and with enlarged images."""
    found = position_accuracies(subject.model, *subject.held_out)
    charts.draw_positions(found, subject.chance, folder / "positions.png")
    own, shuffled, same, larger = (
        interval_of_share(found[name], len(subject.held_out.labels)).as_percent()
        for name in ("own", "shuffled", "mean", "larger")
    )
    return Answer(
        f"With its own positions the model is right on {own}; with the positions of the patches shuffled on "
        f"{shuffled}, with one position for all on {same}, and on images enlarged 1.5 times, to which the positions "
        f"are resized, on {larger}.",
        f"The most frequent class alone is right on {percent(subject.chance)}. A model that was trained without "
        "positions may reach more: train one by --model.pos_embed none.",
        {"positions.png": "Accuracy with own, shuffled and equal positions, and on larger images"},
    )


QUESTIONS: dict[str, Callable[[TrainedModel, Path], Answer]] = {
    "What do the heads attend to?": what_heads_attend_to,
    "How many heads can go?": how_many_heads_can_go,
    "Which layers need their heads?": which_layers_need_their_heads,
    "What does the decision rest on?": what_the_decision_rests_on,
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
