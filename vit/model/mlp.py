"""The MLP of a block, applied to each token by itself."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from vit.support.checks import check_choice, check_positive_int


class QuickGELU(nn.Module):
    """The approximation ``x sigmoid(1.702 x)`` of the GELU, as in OpenAI's CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to each number."""
        return x * (1.702 * x).sigmoid()


# "swiglu" has a module of its own, ``SwiGLU``.
ACTIVATIONS = {"gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, approximate="tanh"), "quick_gelu": QuickGELU}
MLPS = (*ACTIVATIONS, "swiglu")


class Mlp(nn.Module):
    """Two linear layers with an activation between them and dropout after both, applied to each token."""

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float = 0.0, activation: str = "gelu") -> None:
        super().__init__()
        check_positive_int("hidden_dim", hidden_dim, "it is embed_dim times mlp_ratio, whose usual value is 4")
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = ACTIVATIONS[activation]()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token: (B, N, D) -> (B, N, D)."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))


class SwiGLU(nn.Module):
    """An MLP whose hidden layer is gated: ``fc2(silu(x W_1) * x W_2)``, with W_1 and W_2 in ``fc1`` (Shazeer 2020)."""

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive_int("hidden_dim", hidden_dim, "it is embed_dim times mlp_ratio, whose usual value is 8 / 3")
        self.fc1 = nn.Linear(embed_dim, 2 * hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token: (B, N, D) -> (B, N, D)."""
        gate, hidden = self.fc1(tokens).chunk(2, dim=-1)
        return self.drop(self.fc2(self.drop(F.silu(gate) * hidden)))


def make_mlp(name: str, embed_dim: int, hidden_dim: int, dropout: float) -> nn.Module:
    """Build the MLP of a block by its name: a key of ``ACTIVATIONS``, or "swiglu".

    Raises:
        ValueError: If the name is unknown.
    """
    check_choice("mlp", name, MLPS)
    if name == "swiglu":
        return SwiGLU(embed_dim, hidden_dim, dropout)
    return Mlp(embed_dim, hidden_dim, dropout, name)
