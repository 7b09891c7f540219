"""Analysis of layers and heads: measures, importance, pruning, cuts, patches, rank, probes, positions, norms."""

from vit.analysis.head_removal import PruningPoint, pruning_curve
from vit.analysis.head_table import Head, HeadTable
from vit.analysis.heads import describe_heads
from vit.analysis.importance import ablation_importance, head_importance, weight_importance
from vit.analysis.knockout import attribute_edges, cut_edges, cut_heads, cut_layers
from vit.analysis.patching import attribute_patches, patch_activations
from vit.analysis.position_dependence import position_accuracies
from vit.analysis.probes import Probe, Probes, probe_layers
from vit.analysis.projections import projection_ranks
from vit.analysis.pruning import prune_heads
from vit.analysis.rarity import rare_attention
from vit.analysis.sequences import SequencePruningPoint, sequence_head_importance, sequence_pruning_curve
from vit.analysis.tokens import TokenNorms, token_norms
from vit.analysis.truncation import RankPoint, truncation_curve
from vit.support.ranks import rank_correlation

__all__ = [
    "Head",
    "HeadTable",
    "Probe",
    "Probes",
    "PruningPoint",
    "RankPoint",
    "SequencePruningPoint",
    "TokenNorms",
    "ablation_importance",
    "attribute_edges",
    "attribute_patches",
    "cut_edges",
    "cut_heads",
    "cut_layers",
    "describe_heads",
    "head_importance",
    "patch_activations",
    "position_accuracies",
    "probe_layers",
    "projection_ranks",
    "prune_heads",
    "pruning_curve",
    "rank_correlation",
    "rare_attention",
    "sequence_head_importance",
    "sequence_pruning_curve",
    "token_norms",
    "truncation_curve",
    "weight_importance",
]
