"""Explanation maps, made from attention, from gradients, or by removing patches."""

from vit.explain.maps.methods import CLASS_AGNOSTIC, CONTROLS, METHODS, explain, signed_map
from vit.explain.maps.rollout import attention_rollout
from vit.explain.maps.subject import Subject

__all__ = ["CLASS_AGNOSTIC", "CONTROLS", "METHODS", "Subject", "attention_rollout", "explain", "signed_map"]
