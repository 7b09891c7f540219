"""What a ViT looks at, and whether that can be believed: attention of any model, maps, their scoring, pictures."""

from vit.explain.capture import Attentions, capture_attention
from vit.explain.explorer import explorer
from vit.explain.intercept import InterceptAttention
from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS, METHODS, explain
from vit.explain.maps.rollout import attention_rollout
from vit.explain.overlay import displayable, overlay
from vit.explain.scoring import Scores, localise, score
from vit.explain.trust import trust_report

__all__ = [
    "CLASS_AGNOSTIC",
    "CONTROLS",
    "METHODS",
    "Attentions",
    "InterceptAttention",
    "Scores",
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
