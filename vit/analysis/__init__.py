"""Analysis of attention heads: measures, importance, pruning, token norms."""

from vit.analysis.curve import PruningPoint, pruning_curve
from vit.analysis.heads import describe_heads
from vit.analysis.importance import ablation_importance, head_importance, weight_importance
from vit.analysis.projections import projection_ranks
from vit.analysis.pruning import prune_heads
from vit.analysis.table import Head, HeadTable
from vit.analysis.tokens import TokenNorms, token_norms

__all__ = [
    "Head",
    "HeadTable",
    "PruningPoint",
    "TokenNorms",
    "ablation_importance",
    "describe_heads",
    "head_importance",
    "projection_ranks",
    "prune_heads",
    "pruning_curve",
    "token_norms",
    "weight_importance",
]
