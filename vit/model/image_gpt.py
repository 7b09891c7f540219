"""Images written pixel by pixel, as text is.

Letters in the einops patterns: b batch, v colours, r rows and s columns of an image.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.model.decoder import WHOLE, TransformerDecoder
from vit.model.generation import Sampling, sample


class ImageGPT(nn.Module):
    """Writes images pixel by pixel: a decoder over the colours of a palette (Chen et al. 2020).

    >>> model = ImageGPT(palette_size=5, grid=(2, 3), embed_dim=24, depth=1, num_heads=3).eval()
    >>> pixels = torch.tensor([[[4, 0, 1], [2, 2, 3]]])
    >>> model(pixels).shape  # the logits of each pixel, given those before it
    torch.Size([1, 2, 3, 5])
    >>> model.complete(pixels[:, :1]).shape
    torch.Size([1, 2, 3])

    Args:
        palette_size: Number of colours, or of different patches.
        grid: Rows and columns of an image.
        embed_dim: Channels of a token.
        depth: Number of decoder blocks.
        num_heads: Attention heads of a block.
        kwargs: Further arguments of ``TransformerDecoder``.
    """

    def __init__(
        self, palette_size: int, grid: tuple[int, int], embed_dim: int, depth: int, num_heads: int, **kwargs: Any
    ) -> None:
        super().__init__()
        self.grid = tuple(grid)
        self.start = palette_size
        length = grid[0] * grid[1]
        self.decoder = TransformerDecoder(palette_size + 1, embed_dim, depth, num_heads, length, **kwargs)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the logits of each pixel from those before it, row by row: (B, r, s) -> (B, r, s, palette_size)."""
        logits = self.decoder(self._before_each(pixels))[..., : self.start]
        return rearrange(logits, "b (r s) v -> b r s v", r=self.grid[0])

    def forward_features(self, pixels: Tensor) -> Tensor:
        """Compute the states that each pixel is predicted from: (B, r, s) -> (B, r s, D)."""
        return self.decoder.forward_features(self._before_each(pixels))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: embeddings and learned positions."""
        return {f"decoder.{name}" for name in self.decoder.no_weight_decay()}

    @torch.no_grad()
    def complete(
        self, rows: Tensor, temperature: float = 1.0, top_k: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Write the rows below the first ones: (B, r', s) -> (B, r, s).

        Args:
            rows: The first rows of the images; (B, 0, s) writes whole images.
            temperature: Pixels are drawn from the softmax of ``logits / temperature``; 0 takes the most probable.
            top_k: Number of most probable pixels to draw from; None is all.
            generator: Source of the random draws.
        """
        known = self._sequence(rows)
        prompt = F.pad(known, (1, 0), value=self.start)
        steps = self.decoder.max_length - known.shape[1]
        if steps:
            sampling = Sampling(temperature, top_k, forbidden=self.start, generator=generator)
            known = torch.cat([known, sample(self.decoder, prompt, None, steps, None, sampling).tokens], dim=1)
        return rearrange(known, "b (r s) -> b r s", r=self.grid[0])

    def _before_each(self, pixels: Tensor) -> Tensor:
        """Return the token before each pixel of whole images, the start before the first: (B, r, s) -> (B, r s)."""
        sequence = self._sequence(pixels)
        if sequence.shape[1] != self.decoder.max_length:
            raise ValueError(f"pixels have shape {tuple(pixels.shape)}: give whole images of {self.grid} pixels")
        return F.pad(sequence[:, :-1], (1, 0), value=self.start)

    def _sequence(self, rows: Tensor) -> Tensor:
        """Check rows of pixels and return them as a sequence: (B, r', s) -> (B, r' s)."""
        if rows.ndim != 3 or rows.shape[1] > self.grid[0] or rows.shape[2] != self.grid[1]:
            raise ValueError(
                f"pixels have shape {tuple(rows.shape)}: give rows of images of {self.grid} pixels, (B, r, s)"
            )
        check_colours(rows, self.start)
        return rearrange(rows, "b r s -> b (r s)").long()


def check_colours(pixels: Tensor, count: int) -> None:
    """Raise a ValueError unless pixels are numbers of the ``count`` colours."""
    if pixels.dtype not in WHOLE:
        raise ValueError(f"pixels are {pixels.dtype}: give the numbers of their colours, whole numbers below {count}")
    # A GPU would have to wait for the answer.
    if pixels.numel() and pixels.device.type == "cpu":
        low, high = (number.item() for number in pixels.aminmax())
        if low < 0 or high >= count:
            outside = low if low < 0 else high
            raise ValueError(f"pixel {outside} is none of the {count} colours (0 to {count - 1})")
