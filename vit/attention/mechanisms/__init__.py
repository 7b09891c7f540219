"""Attention mechanisms: maps from queries, keys and values to an output. One class each, and one table of names."""

from typing import TYPE_CHECKING, Literal

from vit.attention.mechanisms.chunked import ChunkedAttention
from vit.attention.mechanisms.convolution import ConvolutionAttention
from vit.attention.mechanisms.differential import DifferentialAttention
from vit.attention.mechanisms.gated import GatedAttention
from vit.attention.mechanisms.linear import LinearAttention, RandomFeatureAttention
from vit.attention.mechanisms.local import NeighborhoodAttention, WindowAttention
from vit.attention.mechanisms.lowrank import LinformerAttention, NystromAttention
from vit.attention.mechanisms.mechanism import Mechanism, build
from vit.attention.mechanisms.positional import PositionalAttention
from vit.attention.mechanisms.recurrent import RecurrentAttention
from vit.attention.mechanisms.routed import RoutedAttention
from vit.attention.mechanisms.scores import AdditiveAttention, GeneralAttention
from vit.attention.mechanisms.simplified import SimplifiedAttention
from vit.attention.mechanisms.softmax import SoftmaxAttention
from vit.attention.mechanisms.sparse import SparseAttention, TopKAttention
from vit.attention.mechanisms.talking import TalkingHeadsAttention
from vit.attention.mechanisms.uniform import UniformAttention

KnownName = Literal[
    "softmax",
    "chunked",
    "window",
    "neighborhood",
    "sparse",
    "topk",
    "linear",
    "performer",
    "lowrank",
    "linformer",
    "simplified",
    "talking",
    "differential",
    "gated",
    "additive",
    "general",
    "convolution",
    "recurrent",
    "routed",
    "positional",
    "uniform",
]
if TYPE_CHECKING:
    AttentionName = KnownName
else:
    AttentionName = str  # a program may add names to the table

MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": SoftmaxAttention,
    "chunked": ChunkedAttention,
    "window": WindowAttention,
    "neighborhood": NeighborhoodAttention,
    "sparse": SparseAttention,
    "topk": TopKAttention,
    "linear": LinearAttention,
    "performer": RandomFeatureAttention,
    "lowrank": NystromAttention,
    "linformer": LinformerAttention,
    "simplified": SimplifiedAttention,
    "talking": TalkingHeadsAttention,
    "differential": DifferentialAttention,
    "gated": GatedAttention,
    "additive": AdditiveAttention,
    "general": GeneralAttention,
    "convolution": ConvolutionAttention,
    "recurrent": RecurrentAttention,
    "routed": RoutedAttention,
    "positional": PositionalAttention,
    "uniform": UniformAttention,
}

__all__ = [
    "MECHANISMS",
    "AttentionName",
    "Mechanism",
    "build",
    *(mechanism.__name__ for mechanism in MECHANISMS.values()),
]
