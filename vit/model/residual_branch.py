"""What stands at the end of a residual branch: LayerScale and DropPath.

Letters in the einops patterns: b batch.
"""

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.support.checks import check_share

torch.fx.wrap("rearrange")  # stays one node in an fx trace: it reads sizes, which a trace does not know


class DropPath(nn.Module):
    """Stochastic depth: each training image skips a residual branch at random (Huang et al. 2016).

    Kept branches are scaled by ``1 / (1 - probability)``, which preserves their expected value.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    @property
    def probability(self) -> float:
        """Probability that a training image skips the branch; it may be changed in the course of a training."""
        return self._probability

    @probability.setter
    def probability(self, probability: float) -> None:
        check_share("drop_path", probability, "0.1 is usual")
        self._probability = probability
        self.active = probability > 0.0
        # This is a tensor because torch.compile would compile each block separately for different numbers. It is on the
        # CPU and not a buffer, so it survives the meta device and to_empty. Without axes, it multiplies any tensor.
        self.keep = torch.tensor(1.0 - probability, device="cpu")

    def forward(self, tokens: Tensor) -> Tensor:
        """Zero or scale the branch of each image: (B, N, D) -> (B, N, D)."""
        if not self.training or not self.active:
            return tokens
        is_kept = torch.rand(tokens.shape[0], device=tokens.device) < self.keep
        return tokens * rearrange(is_kept.to(tokens.dtype) / self.keep, "b -> b 1 1")

    def extra_repr(self) -> str:
        """Show the probability when the model is printed."""
        return f"probability={self.probability:.3g}"


class LayerScale(nn.Module):
    """A learned factor per channel at the end of a residual branch (Touvron et al. 2021, CaiT, eq. 3).

    If ``init`` is small, such as 1e-4, each block starts near the identity.
    """

    def __init__(self, embed_dim: int, init: float) -> None:
        super().__init__()
        self.init = float(init)
        self.gamma = nn.Parameter(torch.empty(embed_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Set all factors to ``init``."""
        nn.init.constant_(self.gamma, self.init)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale the channels: (B, N, D) -> (B, N, D)."""
        return tokens * self.gamma
