"""Models with shuffled weights: what a map shows of an architecture and an image, without training.

Shuffling the entries within each parameter keeps their scale and undoes what training has put in place.

Letters in the einops patterns: b batch, r s grid rows and columns.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from einops import reduce
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy, ContradictionError
from vit.capture.interception.head_order import share_head_order
from vit.capture.parts.logits import logits_of
from vit.explain.maps import Subject, signed_map

SEEDS = 8  # shuffles that a verdict rests on; with a single one, its seed would decide


@torch.inference_mode(False)  # the copy is differentiated even if the caller is in inference mode
def shuffled(subject: Subject, seed: int, names: Collection[str] | None = None) -> Subject:
    """Return the subject with a copy of its model whose parameters are shuffled, asked about the same class.

    Args:
        subject: Model, images and score. The copy is asked about the same class.
        seed: Seed of the shuffle.
        names: Parameters to shuffle. None is all of them, which gives an untrained model of the same architecture.

    Raises:
        ValueError: If there is no parameter to shuffle.
    """
    model, anatomy = _copied(subject)
    chosen = [parameter for name, parameter in model.named_parameters() if names is None or name in names]
    if not any(parameter.numel() > 1 for parameter in chosen):
        raise ValueError(
            f"{type(model).__name__} has no parameters to shuffle, so there is no untrained model to compare it with: "
            "give the model before it was quantised or frozen"
        )
    _shuffle(chosen, torch.Generator().manual_seed(seed))
    return _known(replace(subject, model=model, target=subject.contrast.argmax(dim=-1)), anatomy)


@torch.inference_mode(False)
def head_parameters(subject: Subject) -> list[str]:
    """Return the names of the parameters that the logits depend on and no layer does: final norm and head.

    The autograd graph of a pass shows them, so the order in which a model registers its modules does not matter.

    Raises:
        ValueError: If no module for each layer takes its tokens.
    """
    layers = subject.anatomy.parts.layer_names
    if not layers:
        raise ValueError(
            f"{type(subject.model).__name__} has no module for each layer that takes its tokens (B, N, D), so its head "
            "cannot be told from its layers"
        )
    model, anatomy = _copied(subject)
    model.requires_grad_()
    into_last: list[Tensor] = []
    with torch.enable_grad(), anatomy.parts.layers[-1].seen(into_last.append):
        logits = logits_of(model(subject.images[:1]))
    inside = tuple(f"{layer}." for layer in layers)
    outside = {name: p for name, p in model.named_parameters() if not name.startswith(inside)}
    before, used = (
        torch.autograd.grad(output.sum(), [*outside.values()], retain_graph=True, allow_unused=True)
        for output in (into_last[0], logits)
    )
    return [
        name
        for name, earlier, later in zip(outside, before, used, strict=True)
        if earlier is None and later is not None
    ]


def untrained_maps(subject: Subject, methods: Collection[str], first: int = 0) -> dict[str, Tensor]:
    """Return the map of each image by an untrained model of the same architecture, by method: (B, rows, columns).

    There are several untrained models, and each makes the maps of every ``SEEDS``-th image, by all methods. ``first``
    is the number of the first image: small batches take turns among the models as large ones do.
    """
    maps = {method: subject.images.new_empty(len(subject.images), *subject.grid) for method in methods}
    target = subject.contrast.argmax(dim=-1)
    for start in range(min(SEEDS, len(target)) if maps else 0):
        some = replace(subject, images=subject.images[start::SEEDS], target=target[start::SEEDS], versus=None)
        untrained = shuffled(_known(some, _anatomy(subject)), (first + start) % SEEDS)
        for method in methods:
            maps[method][start::SEEDS] = signed_map(method, untrained)
    return maps


def scaled_to_one(maps: Tensor) -> Tensor:
    """Scale maps (B, rows, columns) to a largest size of 1."""
    largest = reduce(maps.abs(), "b r s -> b 1 1", "max")
    return maps / largest.clamp(min=torch.finfo(maps.dtype).tiny)


def mean_of_others(maps: Tensor, earlier: Sequence[Tensor] = ()) -> Tensor:
    """Return for each image the mean map of the other images, scaled to a largest value of 1: -> (B, rows, columns).

    It shows what a method marks in any image, such as the centre. A single image gets a constant map.

    Args:
        maps: The maps of a batch.
        earlier: Maps of the batches before, which count as others.
    """
    others = sum(map(len, earlier)) + len(maps) - 1
    if not others:
        return torch.ones_like(maps)
    scaled = scaled_to_one(maps)
    total = reduce(torch.cat([scaled, *map(scaled_to_one, earlier)]), "b r s -> r s", "sum")
    return (total - scaled) / others


def _anatomy(subject: Subject) -> Anatomy | None:
    try:
        return subject.anatomy
    except ContradictionError:
        raise
    except ValueError:  # a CNN or a hierarchical model, which pixel methods can still explain
        return None


def _copied(subject: Subject) -> tuple[nn.Module, Anatomy | None]:
    """Copy a model together with its anatomy, whose places are modules of the model."""
    model, anatomy = copy.deepcopy((subject.model, _anatomy(subject)))
    share_head_order(subject.model, model)
    return model, anatomy


def _known(subject: Subject, anatomy: Anatomy | None) -> Subject:
    """Return the subject with the anatomy of its architecture, which weights and images do not change."""
    if anatomy is not None:
        vars(subject)["anatomy"] = anatomy
    return subject


@torch.no_grad()
def _shuffle(parameters: list[nn.Parameter], generator: torch.Generator) -> None:
    for parameter in parameters:
        flat = parameter.flatten()
        order = torch.randperm(len(flat), generator=generator).to(flat.device)
        parameter.copy_(flat[order].view_as(parameter))
