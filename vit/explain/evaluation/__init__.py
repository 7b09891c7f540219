"""Evaluation of maps: faithfulness, ground truth, sanity checks, and a report of all of them."""

from vit.explain.evaluation.scoring import Scores, localise, score
from vit.explain.evaluation.trust import trust_report

__all__ = ["Scores", "localise", "score", "trust_report"]
