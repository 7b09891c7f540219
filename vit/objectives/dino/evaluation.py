"""The evaluation of DINO: its features, and how much the prototypes say about an image.

Letters in the einops patterns: v views, b images, k prototypes.
"""

from typing import Any

import torch
from einops import rearrange, reduce
from torch import Tensor

from vit.objectives.feature_evaluation import FeatureEvaluation

LEAST_INFORMATION = 0.02  # nats; below it, the teacher says nearly the same of all images


class DistillationEvaluation(FeatureEvaluation):
    """The loss of an evaluation, the features of its images, and how the teacher divides them among prototypes."""

    def __init__(self, num_features: int, prototypes: int, device: torch.device) -> None:
        super().__init__(num_features, device)
        self.probabilities = torch.zeros(prototypes, dtype=self.loss_sum.dtype, device=device)  # sum over views
        self.entropy = torch.zeros_like(self.loss_sum)  # sum over views

    def count_prototypes(self, probabilities: Tensor) -> None:
        """Add the teacher's probabilities of the prototypes for each view: (V, B, K)."""
        of_each = rearrange(probabilities, "v b k -> (v b) k").to(self.probabilities)
        self.probabilities += reduce(of_each, "b k -> k", "sum")
        self.entropy += torch.special.entr(of_each).sum()

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [*super().sums(), self.probabilities, self.entropy]

    @property
    def information(self) -> float:
        """Mutual information of image and prototype, in nats.

        It is the entropy of the mean probabilities, less the mean entropy of a view. After a collapse it is 0: the
        probabilities are the same for all images, whether one prototype has them all or all are equal.
        """
        views = self.probabilities.sum()  # those of a view sum to one
        if views == 0:
            return 0.0
        of_all = torch.special.entr(self.probabilities / views).sum()
        return (of_all - self.entropy / views).clamp(min=0).item()

    def scores(self) -> dict[str, Any]:
        """Return the scores of the evaluation, ready for JSON."""
        return super().scores() | {"information": self.information}
