"""The table of heads: the measures of each head of a ViT, and its kind."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from vit.support.markdown import markdown_table

Kind = Literal["sink", "positional", "local", "content", "mixed"]

SINK_SHARE = 0.3  # share of all attention that one token gets; threshold of Gu et al. (2025)
POSITIONAL = 0.9  # share of the largest weights that are at one offset; threshold of Voita et al. (2019)
LOCAL = 0.5  # as a multiple of the distance of uniform attention
FOLLOWS = 0.5  # cosine; from here on, more than half of what differs between images moves along with the image

COLUMNS = {
    "layer": "layer", "head": "head", "kind": "kind", "distance": "distance px", "relative_distance": "of uniform",
    "raw_distance": "raw px", "entropy": "entropy", "confidence": "max", "class_to_prefix": "class>prefix",
    "patch_to_prefix": "patch>prefix", "self_mass": "self", "positional": "positional", "offset_score": "offset score",
    "offset": "offset", "follows": "follows", "effective_rank": "eff. rank", "stable_rank": "stable rank",
    "redundancy": "redundancy", "sink": "sink",
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The measures of one head. All are means over images, except positional, offset_score, offset and redundancy.

    Attributes:
        layer: Number of the layer, from 0.
        head: Number of the head in its layer, from 0.
        distance: Attention distance between patches in pixels. Attention to prefix tokens does not count.
        relative_distance: This distance divided by the distance of uniform attention.
        raw_distance: Attention distance in pixels; attention to prefix tokens counts as distance 0.
        entropy: Entropy of attention, from 0 for a single token to 1 for uniform attention.
        confidence: Largest weight of a query.
        class_to_prefix: Attention of the first prefix token (the class token, if there is one) to non-patch tokens.
            NaN if there are no prefix tokens.
        patch_to_prefix: Attention of a patch to non-patch tokens.
        self_mass: Attention of a token to itself.
        positional: Share of attention that is the same for all images.
        offset_score: Share of patches whose most attended patch is at the most frequent offset.
        offset: The most frequent offset, in patches down and to the right.
        follows: How far attention moves along with an image that is moved by half its size (see ``follow_score``). NaN
            if there is a single patch, which cannot move.
        effective_rank: Effective rank of the attention matrix, from the entropy of its singular values.
        stable_rank: Stable rank of the attention matrix, from the squares of its singular values.
        redundancy: Largest cosine between this head's mean attention and that of any other head of the model.
        sink: Attention to the most attended token, as a multiple of uniform attention.
        sink_share: Attention to this token, as a share of all attention.
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
    follows: float
    effective_rank: float
    stable_rank: float
    redundancy: float
    sink: float
    sink_share: float

    @property
    def kind(self) -> Kind:
        """The first kind in this list that fits. The thresholds stand at the top of the file and are conventions.

        - "sink": ``sink_share`` is above ``SINK_SHARE``.
        - "positional": ``positional`` or ``offset_score`` is above ``POSITIONAL``. Attention is the same for all
          images, or at the same offset from all patches.
        - "local": ``relative_distance`` is below ``LOCAL``. Attention is near.
        - "content": ``follows`` is above ``FOLLOWS``. Attention is far, and moves along with what the image shows.
        - "mixed": none of these.
        """
        if self.sink_share > SINK_SHARE:
            return "sink"
        if max(self.positional, self.offset_score) > POSITIONAL:
            return "positional"
        if self.relative_distance < LOCAL:
            return "local"
        return "content" if self.follows > FOLLOWS else "mixed"


@dataclass(frozen=True)
class HeadTable:
    """The measures of all heads of a model. ``print`` shows them as a Markdown table.

    Attributes:
        heads: The heads, layer by layer.
        grid: Rows and columns of patches.
        uniform_distance: Attention distance of uniform attention, in pixels.
        offset_maps: For each layer with heads, the mean attention at each offset: (H, 2r-1, 2c-1), 1 if uniform.
        spectra: For each layer with heads, the singular values as shares of their sum: (H, N), means over images.
    """

    heads: list[Head]
    grid: tuple[int, int]
    uniform_distance: float
    offset_maps: list[Tensor]
    spectra: list[Tensor]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per head, for a data frame or a CSV file."""
        return [asdict(head) | {"kind": head.kind} for head in self.heads]

    def __str__(self) -> str:
        rows = [{title: _format(row[name]) for name, title in COLUMNS.items()} for row in self.to_rows()]
        return markdown_table(rows, right=COLUMNS.values())


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:+d} {value[1]:+d}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
