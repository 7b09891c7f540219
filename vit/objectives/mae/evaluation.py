"""The evaluation of a masked autoencoder: its error on hidden patches, and its features."""

from typing import Any

from vit.objectives.feature_evaluation import FeatureEvaluation


class ReconstructionEvaluation(FeatureEvaluation):
    """The error of an evaluation on hidden patches, and the features of its images."""

    @property
    def reconstruction_error(self) -> float:
        """Mean squared error of hidden patches, each normalised.

        A prediction of their means has (P - 1) / P for patches of P numbers, and less for patches of one colour.
        """
        return self.loss

    def scores(self) -> dict[str, Any]:
        """Return the scores of the evaluation, ready for JSON."""
        return {"reconstruction_error": self.reconstruction_error} | super().scores()
