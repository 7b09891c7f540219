"""LeJEPA: the LightningModule that trains an encoder without labels, teacher or queue.

Letters in the einops patterns: v views, b images, k channels of a projected feature.
"""

from typing import Any

import torch
from einops import reduce
from torch import Tensor

from vit.model.projected_encoder import ProjectedEncoder
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.sigreg.normality import sketched_normality
from vit.objectives.view_learner import ViewLearner
from vit.support.checks import check_share


class SIGReg(ViewLearner):
    """Learns features without labels: alike for the views of an image, normally distributed over images.

    LeJEPA (Balestriero and LeCun 2025): the loss pulls the views of an image to the mean of the large ones. Sketched
    isotropic Gaussian regularisation (SIGReg) keeps the features of all images from becoming the same.

    Args:
        sigreg_weight: Weight of the regularisation in the loss, in (0, 1); the rest is that of the invariance.
        projection_dim: Channels of the projected features that are compared; the projection is left out afterwards.
        kwargs: Views, training, and the VisionTransformer that computes the features.

    Raises:
        ValueError: If an argument is out of its range, or there are fewer than two views.
    """

    def __init__(self, sigreg_weight: float = 0.05, projection_dim: int = 64, **kwargs: Any) -> None:
        check_share("sigreg_weight", sigreg_weight, "0.05 is usual")
        if sigreg_weight == 0:
            raise ValueError("sigreg_weight (0) lets the features of all images become the same: 0.05 is usual")
        super().__init__(**kwargs)

    def build_network(self, encoder: VisionTransformer) -> ProjectedEncoder:
        """Return the encoder with its projection."""
        return ProjectedEncoder(encoder, self.hparams.projection_dim)

    def view_losses(self, views: list[Tensor], is_real: Tensor, step: int) -> Tensor:
        """Return the loss of each image: how far its views are from the mean of the large ones, and SIGReg."""
        projected = self.embed(self.network, views)
        with torch.autocast(self.device.type, enabled=False):  # bfloat16 has 8 bits for the angles
            return self.losses_of_projections(projected, is_real, step)

    def losses_of_projections(self, projected: Tensor, is_real: Tensor, step: int) -> Tensor:
        """Return the loss of each image by the projected features of its views: (V, B, K), (B,) -> (B,)."""
        weight = self.hparams.sigreg_weight
        centre = reduce(projected[: self.views.global_views], "v b k -> b k", "mean")
        distances = reduce((projected - centre).square(), "v b k -> b", "mean")
        return (1 - weight) * distances + weight * sketched_normality(projected, is_real, step)

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        return 3 * self.forward_flop_of_views(self.network, self.views.global_views, self.views.local_views)
