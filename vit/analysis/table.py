"""What is known of each head of a ViT: its measures, and a name for its kind."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

Kind = Literal["sink", "positional", "local", "content"]

SINK_SHARE = 0.3  # of all attention, to one token: the threshold of Gu et al. (2025)
POSITIONAL = 0.9  # Voita et al. (2019), who ask whether 90 % of the largest weights lie at one offset
LOCAL = 0.5  # of the distance of uniform attention: nearer to none than to that

COLUMNS = {
    "layer": "layer", "head": "head", "kind": "kind", "distance": "distance px", "relative_distance": "of uniform",
    "raw_distance": "raw px", "entropy": "entropy", "confidence": "max", "class_to_prefix": "class>prefix",
    "patch_to_prefix": "patch>prefix", "self_mass": "self", "positional": "positional", "offset_score": "offset score",
    "offset": "offset", "effective_rank": "eff. rank", "stable_rank": "stable rank", "redundancy": "redundancy",
    "sink": "sink",
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """One head, measured; all but the two scores of position and redundancy are means over images.

    Attributes:
        layer: Its layer, from 0.
        head: Its number in the layer, from 0.
        distance: How far patches look, in pixels, attention to prefix tokens left aside.
        relative_distance: The same, as a multiple of that of uniform attention.
        raw_distance: The distance in pixels when attention to prefix tokens counts as distance 0.
        entropy: How spread attention is, from 0 for one token to 1 for all alike.
        confidence: The largest weight of a token.
        class_to_prefix: Attention of the first prefix token, the class token where there is one, to tokens that are no
            patches; NaN without prefix tokens.
        patch_to_prefix: Attention of a patch to tokens that are no patches.
        self_mass: Attention of a token to itself.
        positional: Share of attention that is the same for all images.
        offset_score: How often the most attended patch lies at one and the same offset.
        offset: That offset, patches down and to the right.
        effective_rank: Dimensions that the attention matrix uses.
        stable_rank: The same, counted by squares.
        redundancy: Largest cosine of the mean attention with that of any other head of the model.
        sink: How many times its fair share the most attended token gets.
        sink_share: Share of all attention that this token gets.
    """

    layer: int
    head: int
    distance: float
    relative_distance: float
    raw_distance: float
    entropy: float
    confidence: float
    class_to_prefix: float
    patch_to_prefix: float
    self_mass: float
    positional: float
    offset_score: float
    offset: tuple[int, int]
    effective_rank: float
    stable_rank: float
    redundancy: float
    sink: float
    sink_share: float

    @property
    def kind(self) -> Kind:
        """The first of these that it is; the thresholds are conventions, and stand at the top of the file.

        - "sink": one token gets more than ``SINK_SHARE`` of all attention;
        - "positional": it looks at the same places in all images (``positional``), or from every patch in the same
          direction (``offset_score``), by more than ``POSITIONAL``;
        - "local": it looks less than ``LOCAL`` as far as uniform attention, but content decides where;
        - "content": the rest, which look far, and elsewhere in each image.
        """
        if self.sink_share > SINK_SHARE:
            return "sink"
        if max(self.positional, self.offset_score) > POSITIONAL:
            return "positional"
        return "local" if self.relative_distance < LOCAL else "content"


@dataclass(frozen=True)
class HeadTable:
    """All heads of a model, measured; ``print`` shows it as a Markdown table.

    Attributes:
        heads: The heads, layer by layer.
        grid: Rows and columns of patches.
        uniform_distance: Attention distance of a head that looks at all patches alike, in pixels.
        offset_maps: For each layer with heads, mean attention at each offset as a multiple of uniform, (H, 2r-1, 2c-1).
        spectra: For each layer with heads, singular values as shares of their sum, mean over images, (H, N).
    """

    heads: list[Head]
    grid: tuple[int, int]
    uniform_distance: float
    offset_maps: list[Tensor]
    spectra: list[Tensor]

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary for each head, as for a data frame or a CSV file."""
        return [asdict(head) | {"kind": head.kind} for head in self.heads]

    def __str__(self) -> str:
        cells = [list(COLUMNS.values())]
        cells += [[_written(row[name]) for name in COLUMNS] for row in self.to_rows()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
        lines = [
            f"| {' | '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells
        ]
        return "\n".join([lines[0], f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|", *lines[1:]])


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:+d} {value[1]:+d}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
