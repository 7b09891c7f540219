"""Tests how well contributions and attention predict the effect of a mean ablation of one token in one head.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels of a head, t ablations.
"""

from itertools import product

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.capture.attention_output import AttentionOutput, capture_outputs
from vit.explain.evaluation.confidence import mean_interval
from vit.explain.evaluation.printed_table import Table
from vit.explain.evaluation.similarity import map_correlation
from vit.explain.maps.subject import Subject, Target
from vit.explain.readout import last_boundary, linear_readout
from vit.explain.residual_stream import by_head

Place = tuple[int, int, int]  # a layer, a head, and a token


def ablation_agreement(
    model: nn.Module, images: Tensor, target: Target = None, *, ablations: int = 64, seed: int = 0
) -> Table:
    """Compare contributions and attention with the effect of mean ablation: a table of rank correlations.

    An ablation replaces what one head carries from one token by its mean over the images, in the running model. Its
    effect is the fall of the logit, with all that later layers make of it. Contributions predict it by the fall of the
    terms alone, and attention by the weight that the read-out token gives to this token. Each number is the mean over
    images of Spearman's correlation with the effects, or with their sizes, because attention has no sign. The last row
    is the difference of the two predictions.

    Args:
        model: A ViT as ``contributions`` takes it.
        images: Images as the model takes them, (B, C, H, W), 20 or more.
        target: The class, as in ``contributions``.
        ablations: Number of places (layer, head, token), drawn at random; each takes one pass of all images.
        seed: Seed of the draw.

    Raises:
        ValueError: If there are fewer than two images or three ablations, or as in ``contributions``.
    """
    if len(images) < 2 or ablations < 3:
        raise ValueError(
            f"{len(images)} images and {ablations} ablations: the mean of a head needs at least two images, and a rank "
            "correlation three ablations"
        )
    subject = Subject(model, images, target)
    subject.anatomy.check_in_order()
    parts = subject.anatomy.parts
    weights = linear_readout(subject, last_boundary(model, subject.images, parts)).weights
    outputs = capture_outputs(model, images, subject.anatomy.calls)
    places = _draw(outputs, ablations, seed)
    effects = torch.stack([ablation_effect(subject, outputs, place) for place in places], dim=1)
    predictions = {
        "contributions": torch.stack([direct_effect(outputs, weights, place) for place in places], dim=1),
        "attention": torch.stack([_attention_to(subject, outputs, place) for place in places], dim=1),
    }
    found = {
        name: {"effect": _agreement(values, effects), "size of the effect": _agreement(values.abs(), effects.abs())}
        for name, values in predictions.items()
    }
    found["difference"] = {
        measure: values - found["attention"][measure] for measure, values in found["contributions"].items()
    }
    rows = [
        {"prediction": name} | {measure: mean_interval(values) for measure, values in measures.items()}
        for name, measures in found.items()
    ]
    return Table(rows, f"{len(images)} images, {len(places)} ablations of one token in one head; 95 % intervals")


@torch.no_grad()
def ablation_effect(subject: Subject, outputs: list[AttentionOutput], place: Place) -> Tensor:
    """Return how much the score falls if what a head carries from a token is replaced by its mean over images: (B,).

    Raises:
        ValueError: If the values of the head do not span its channels, so that no weights can produce the mean.
    """
    layer, head, _ = place
    values, change = outputs[layer].values[:, head], _change(outputs, place)
    # Interception replaces weights, so the change of the output of a head is written as a change of its weights.
    weights = einsum(change, torch.linalg.pinv(values), "b n d, b d m -> b n m")
    missed = (einsum(weights, values, "b n m, b m d -> b n d") - change).abs().max()
    if missed > 1e-3 * change.abs().max() + torch.finfo(change.dtype).tiny:
        raise ValueError(
            f"the values of head {head} in layer {layer} have fewer dimensions than channels, so that no attention "
            "carries the mean: give larger images, or prune the head"
        )

    def ablate(index: int, found: Tensor) -> Tensor:
        if index == layer:
            found = found.clone()
            found[:, head] += weights.to(found.dtype)
        return found

    logits = run_intercepted(subject.model, subject.images, ablate, subject.anatomy.calls)
    return subject.score(subject.logits) - subject.score(logits)


@torch.no_grad()
def direct_effect(outputs: list[AttentionOutput], weights: Tensor, place: Place) -> Tensor:
    """Return how much the terms of the score fall in the same ablation if later layers do not change: (B,).

    The weights are those of ``linear_readout``, (B, N, C).
    """
    layer, head, _ = place
    read = einsum(weights, by_head(outputs[layer])[head], "b n c, c d -> b n d")
    return -einsum(read, _change(outputs, place), "b n d, b n d -> b")


def _change(outputs: list[AttentionOutput], place: Place) -> Tensor:
    """Return the change of the output of a head if what it carries from a token becomes the mean: (B, N, d)."""
    layer, head, token = place
    attn, values = outputs[layer].attn[:, head, :, token], outputs[layer].values[:, head, token]
    carried = einsum(attn, values, "b n, b d -> b n d")
    return reduce(carried, "b n d -> 1 n d", "mean") - carried


def _draw(outputs: list[AttentionOutput], count: int, seed: int) -> list[Place]:
    every = [(i, *where) for i, output in enumerate(outputs) for where in product(*map(range, output.attn.shape[1:3]))]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return [every[i] for i in order[:count].tolist()]


def _agreement(predicted: Tensor, effects: Tensor) -> Tensor:
    return map_correlation(*(rearrange(values, "b t -> b 1 t") for values in (predicted, effects)))


def _attention_to(subject: Subject, outputs: list[AttentionOutput], place: Place) -> Tensor:
    layer, head, token = place
    attn = outputs[layer].attn[:, head, :, token]
    return einsum(attn, subject.readout.to(attn), "b n, b n -> b")
