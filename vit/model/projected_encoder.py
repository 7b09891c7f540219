"""An encoder with a head for learning without labels, which projects the feature and may compare it with prototypes.

Letters in the einops patterns: b batch, k prototypes, d channels.
"""

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

from vit.attention.mechanisms.initial_weights import draw_weights
from vit.attention.mechanisms.mechanism import undecayed_parameters
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_positive_int


class Projector(nn.Module):
    """Three linear layers with GELU between them: (B, D) -> (B, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, hidden_dim)
        self.fc3 = nn.Linear(hidden_dim, out_dim)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the initial weights."""
        draw_weights(self)

    def forward(self, features: Tensor) -> Tensor:
        """Project features: (B, D) -> (B, out_dim)."""
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(features)))))


class Prototypes(nn.Module):
    """Cosines between projected features and learned directions (Caron et al. 2021): (B, D) -> (B, K)."""

    def __init__(self, in_dim: int, count: int) -> None:
        super().__init__()
        check_positive_int("prototypes", count, "1024 is usual")
        if count == 1:
            raise ValueError("prototypes (1) leaves nothing to predict, as its probability is always 1: 1024 is usual")
        self.weight = nn.Parameter(torch.empty(count, in_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the directions, evenly over the sphere."""
        nn.init.normal_(self.weight)

    def forward(self, projected: Tensor) -> Tensor:
        """Compute the cosine of each projected feature with each prototype."""
        return einsum(F.normalize(projected, dim=1), F.normalize(self.weight, dim=1), "b d, k d -> b k")


class ProjectedEncoder(nn.Module):
    """A Vision Transformer without classes and a head on its pooled feature.

    >>> encoder = VisionTransformer(image_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=3, num_classes=0)
    >>> ProjectedEncoder(encoder, out_dim=5)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    >>> ProjectedEncoder(encoder, out_dim=5, prototypes=7)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 7])

    Args:
        encoder: Computes the features.
        out_dim: Channels of a projected feature.
        prototypes: Number of directions that projected features are compared with; None returns the projected features.
    """

    def __init__(self, encoder: VisionTransformer, out_dim: int, prototypes: int | None = None) -> None:
        super().__init__()
        check_positive_int("projection_dim", out_dim, "64 is usual")
        self.encoder = encoder
        self.projector = Projector(encoder.num_features, 4 * encoder.num_features, out_dim)
        self.prototypes = nn.Identity() if prototypes is None else Prototypes(out_dim, prototypes)

    def forward(self, images: Tensor) -> Tensor:
        """Project images: (B, C, H, W) -> (B, out_dim), or (B, K) if there are prototypes."""
        return self.prototypes(self.projector(self.encoder(images)))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return {f"encoder.{name}" for name in self.encoder.no_weight_decay()} | undecayed_parameters(self)
