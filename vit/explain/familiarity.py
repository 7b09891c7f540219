"""Tells whether a model knows images like a photograph, by the energy of its logits beside that of its test images.

The energies of test images come with the packaged model, in a file beside its weights. This command writes it:
``python benchmarks/familiarity.py --data data/cifar10-jpeg --thresholds vit/weights/cifar10.familiar.json``.
For other models, no energies are known, and nothing is said.
"""

import hashlib
import json
from bisect import bisect_right
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from torch import Tensor, nn

ALARMS = (1, 5)  # percent of the test images that get a caution as well, at two thresholds


class Caution(NamedTuple):
    """A warning that a model may not know such images, and how often it is right and wrong."""

    said: str
    rates: str


def energy(logits: Tensor) -> Tensor:
    """Return the log of the sum of the exponentials of all logits (Liu et al. 2020): (..., classes) -> (...).

    More evidence for some class makes it larger. (The paper's energy has the opposite sign.)

    >>> energy(Tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    return logits.logsumexp(dim=-1)


def fingerprint_of(model: nn.Module) -> str:
    """Return a hash of the weights, because energies belong to exactly these weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def caution_about(model: nn.Module, logits: Tensor) -> Caution | None:
    """Return a warning if a model may not know images like this one, by its logits (classes,).

    Only the packaged model gets warnings, because nothing is known of the test images of other models.
    """
    return caution(known_energies(), energy(logits).item()) if is_packaged(model) else None


def is_packaged(model: nn.Module) -> bool:
    """Return whether a model is the one that comes with the package, by its weights."""
    known = known_energies()
    is_as_large = sum(each.numel() for each in model.parameters()) == known["parameters"]
    return is_as_large and known["weights"] == fingerprint_of(model)


def caution(known: dict[str, Any], value: float) -> Caution | None:
    """Return the warning for an energy; None if the energy is high enough."""
    percents = dict(zip(known["percents"], known["energies"], strict=True))
    level = next((percent for percent in ALARMS if value < percents[percent]), None)
    if level is None:
        return None
    above = 100 - bisect_right(known["energies"], value)
    more = "more than 99 %" if above == 100 else f"{above} %"
    photographs, *others = known["caught"][str(level)].items()
    named = f"{', '.join(name for name, _ in others[:-1])} and {others[-1][0]}"
    least, most = (100 * bound(share for _, share in others) for bound in (min, max))
    return Caution(
        f"Perhaps none of its classes: the energy of this photograph, {value:.1f}, is lower than that of {more} of the "
        "test images.",
        f"{level} % of the test images get this caution, {100 * photographs[1]:.0f} % of photographs of "
        f"{photographs[0]}, and {least:.0f} to {most:.0f} % of {named}.",
    )


@lru_cache
def known_energies() -> dict[str, Any]:
    """Return what is known of the test images of the packaged model."""
    return json.loads(files("vit.weights").joinpath("cifar10.familiar.json").read_text(encoding="utf-8"))
