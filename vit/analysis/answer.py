"""The answer to a question about a model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Answer:
    """The answer to a question."""

    found: str  # the result, in sentences
    control: str  # what to compare it with, in sentences
    pictures: dict[str, str] = field(default_factory=dict)  # the name of each picture file, and what it shows
    # For each column of the table of heads, a value per layer and head.
    columns: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def listed(layers: Sequence[Tensor]) -> list[list[float]]:
    """Return a value per layer and head, from one (H,) for each layer."""
    return [layer.tolist() for layer in layers]
