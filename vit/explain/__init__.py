"""What a ViT looks at, and whether that can be believed: attention of any model, maps, their scoring, pictures."""

from vit.explain.capture import Attentions, InterceptAttention, capture_attention
from vit.explain.explorer import explorer
from vit.explain.methods import CLASS_AGNOSTIC, CONTROLS, METHODS, explain
from vit.explain.overlay import displayable, overlay
from vit.explain.rollout import attention_rollout
from vit.explain.scoring import localise, score
from vit.explain.trust import trust_report

__all__ = [
    "CLASS_AGNOSTIC",
    "CONTROLS",
    "METHODS",
    "Attentions",
    "InterceptAttention",
    "attention_rollout",
    "capture_attention",
    "displayable",
    "explain",
    "explorer",
    "localise",
    "overlay",
    "score",
    "trust_report",
]
