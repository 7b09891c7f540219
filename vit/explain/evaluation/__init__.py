"""What a map is worth: faithfulness, known truth, sanity checks, and the report that sums them up."""

from vit.explain.evaluation.scoring import Scores, localise, score
from vit.explain.evaluation.trust import trust_report

__all__ = ["Scores", "localise", "score", "trust_report"]
