"""Explanations of ViT predictions: attention of any model, maps, their evaluation, pictures."""

from typing import Any

from vit.capture import Attentions, InterceptAttention, capture_attention
from vit.explain.decomposition import Contributions, contributions
from vit.explain.evaluation import (
    Scores,
    adversarial_attention,
    localise,
    permuted_attention,
    score,
    trust_report,
    uniform_attention,
)
from vit.explain.explorer_page import explorer
from vit.explain.heatmap import displayable, overlay
from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS, METHODS, explain
from vit.explain.maps.backbones import Features, PatchToken, Similarity
from vit.explain.maps.flow import attention_flow
from vit.explain.maps.rollout import attention_rollout
from vit.explain.photograph_overlay import cell_boxes, overlay_photograph
from vit.explain.readout import logit_lens
from vit.explain.registers import AddedRegister, add_register
from vit.explain.text_page import text_explorer
from vit.explain.texts import explain_text, peaks_on_boxes

__all__ = [
    "CLASS_AGNOSTIC",
    "CONTROLS",
    "METHODS",
    "AddedRegister",
    "Attentions",
    "Contributions",
    "Features",
    "InterceptAttention",
    "PatchToken",
    "Scores",
    "Similarity",
    "add_register",
    "adversarial_attention",
    "attention_flow",
    "attention_rollout",
    "capture_attention",
    "cell_boxes",
    "contributions",
    "displayable",
    "explain",
    "explain_text",
    "explorer",
    "localise",
    "logit_lens",
    "overlay",
    "overlay_photograph",
    "peaks_on_boxes",
    "permuted_attention",
    "picture",
    "score",
    "text_explorer",
    "trust_report",
    "uniform_attention",
]


def __getattr__(name: str) -> Any:
    if name == "picture":  # imports matplotlib and Pillow, which not all need
        from vit.explain.photograph_sheet import picture

        return picture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, with those that are imported when they are used."""
    return sorted({*globals(), *__all__})
