"""Explanation maps, made from attention, from gradients, or by removing patches."""

from vit.explain.maps.methods import CLASS_AGNOSTIC, CONTROLS, METHODS, check_method, explain, signed_map
from vit.explain.maps.rollout import attention_rollout
from vit.explain.maps.subject import Subject

__all__ = [
    "CLASS_AGNOSTIC",
    "CONTROLS",
    "METHODS",
    "Subject",
    "attention_rollout",
    "check_method",
    "explain",
    "signed_map",
]
