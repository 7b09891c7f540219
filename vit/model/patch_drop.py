"""Leaves patches out: drawn at random in training, chosen by number, or hidden behind a mask token.

Letters in the einops patterns: b batch, n tokens, d channels of a token.
"""

import torch
from einops import pack, rearrange, repeat
from torch import Tensor, nn

from vit.support.checks import check_share

for function in ("rearrange", "repeat"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know


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
