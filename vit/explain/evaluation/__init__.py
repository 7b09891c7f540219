"""Evaluation of maps: faithfulness, ground truth, sanity checks, other attention, and a report of all of them."""

from vit.explain.evaluation.adversarial import AdversarialAttention, adversarial_attention
from vit.explain.evaluation.information_flow import follow_noise
from vit.explain.evaluation.sanity import permuted_attention, uniform_attention
from vit.explain.evaluation.scoring import Scores, localise, score
from vit.explain.evaluation.trust import trust_report

__all__ = [
    "AdversarialAttention",
    "Scores",
    "adversarial_attention",
    "follow_noise",
    "localise",
    "permuted_attention",
    "score",
    "trust_report",
    "uniform_attention",
]
