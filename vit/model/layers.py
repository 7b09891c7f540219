"""Layers of the model besides attention: MLPs, PatchDrop, DropPath, LayerScale, pooling by attention.

Letters in the einops patterns: b batch, n m tokens, h heads, d channels of a token or of a head.
"""

from functools import partial

import torch
import torch.nn.functional as F
from einops import pack, rearrange, repeat
from torch import Tensor, nn

from vit.attention.mechanisms.softmax import attend
from vit.support.checks import check_choice, check_positive_int, check_share

for function in ("rearrange", "repeat", "attend"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know


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


def keep_patches(
    tokens: Tensor, patches: Tensor, num_prefix_tokens: int, angles: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Keep the prefix tokens and some patches of each image: (B, prefix + N, D), numbers (B, K) -> (B, prefix + K, D).

    If there are rotary angles (prefix + N, d / 2), they are gathered for each image: (B, prefix + K, d / 2).
    """
    kept = number_tokens(patches, num_prefix_tokens)
    tokens = tokens.gather(1, repeat(kept, "b n -> b n d", d=tokens.shape[2]))
    return tokens, None if angles is None else angles[kept]


def number_tokens(patches: Tensor, num_prefix_tokens: int) -> Tensor:
    """Return the numbers of the prefix tokens and of some patches among all tokens: (B, K) -> (B, prefix + K)."""
    prefix = repeat(torch.arange(num_prefix_tokens, device=patches.device), "n -> b n", b=len(patches))
    # In 64 bits: the sum of a narrow integer would start again at 0.
    return pack([prefix, patches.long() + num_prefix_tokens], "b *")[0]


def hide_patches(patches: Tensor, hidden: Tensor | None, mask_token: Tensor | None) -> Tensor:
    """Replace hidden patches by the mask token: (B, N, D), booleans (B, N) or None -> (B, N, D).

    Raises:
        ValueError: If there is no mask token, or the booleans have another type or shape.
    """
    if hidden is None:
        return patches
    if mask_token is None:
        raise ValueError("token_mask hides patches, and this model has no token for them: set mask_token to True")
    if hidden.dtype != torch.bool or hidden.shape != patches.shape[:2]:
        raise ValueError(
            f"token_mask is {hidden.dtype} of shape {tuple(hidden.shape)}: give booleans of shape "
            f"{tuple(patches.shape[:2])}, True for each hidden patch"
        )
    return torch.where(rearrange(hidden, "b n -> b n 1"), mask_token.to(patches.dtype), patches)


class PatchDrop(nn.Module):
    """Drops a random share of the patches in training (Liu et al. 2023), which shortens a step by nearly that share."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        check_share("patch_drop", rate, "0.5 drops half of the patches")
        self.rate = rate

    def forward(
        self, tokens: Tensor, num_prefix_tokens: int, angles: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Keep the prefix tokens and random patches, in order, and their rotary angles, as ``keep_patches`` does."""
        if not self.training or self.rate == 0:
            return tokens, angles
        patches = self.draw(tokens.shape[0], tokens.shape[1] - num_prefix_tokens, tokens.device)
        return keep_patches(tokens, patches, num_prefix_tokens, angles)

    def draw(self, batch: int, patches: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw the numbers of the patches that each image keeps, in order: (B, kept).

        ``VisionTransformer.forward_features`` takes them as ``keep``, if a training must know which patches are left.

        >>> PatchDrop(0.75).draw(batch=2, patches=64).shape
        torch.Size([2, 16])
        """
        shuffled = torch.rand(batch, patches, device=device).argsort(dim=1)
        return shuffled[:, : max(1, round(patches * (1 - self.rate)))].sort(dim=1).values

    def extra_repr(self) -> str:
        """Show the rate when the model is printed."""
        return f"rate={self.rate:.3g}"


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
        # CPU and not a buffer, so it survives the meta device and to_empty. Without axes, it works with any device.
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


class AttentionPool(nn.Module):
    """Pools tokens by attention of one learned query and an MLP (Zhai et al. 2022, fig. 4). Weights have timm's names.

    ``x = proj(attend(latent, tokens))``, then ``x + mlp(norm(x))``.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float, mlp: str, norm_eps: float) -> None:
        super().__init__()
        if embed_dim % num_heads:  # key_dim and value_dim may let the blocks have such heads
            raise ValueError(
                f"embed_dim ({embed_dim}) must be divisible by num_heads ({num_heads}) for pool 'map': take another "
                "number of heads, or pool 'mean'"
            )
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.q = nn.Linear(embed_dim, embed_dim)
        self.kv = nn.Linear(embed_dim, 2 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = make_mlp(mlp, embed_dim, int(embed_dim * mlp_ratio), 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Pool the tokens: (B, N, D) -> (B, D)."""
        query = repeat(self.q(self.latent), "1 1 (h d) -> b h 1 d", b=tokens.shape[0], h=self.num_heads)
        k, v = rearrange(self.kv(tokens), "b m (two h d) -> two b h m d", two=2, h=self.num_heads)
        pooled = self.proj(rearrange(attend(query, k, v), "b h 1 d -> b (h d)"))
        return pooled + self.mlp(self.norm(pooled))
