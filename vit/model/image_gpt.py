"""A model that generates images pixel by pixel, as language models generate text.

Letters in the einops patterns: b batch, r rows and s columns of an image.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.model.generation import Sampling, sample
from vit.model.pixel_model import PixelModel


class ImageGPT(PixelModel):
    """Generates images pixel by pixel: a causal decoder over the colours of a palette (Chen et al. 2020).

    For the arguments, see ``PixelModel``.

    >>> model = ImageGPT(palette_size=5, grid=(2, 3), embed_dim=24, depth=1, num_heads=3).eval()
    >>> pixels = torch.tensor([[[4, 0, 1], [2, 2, 3]]])
    >>> model(pixels).shape  # the logits of each pixel, given those before it
    torch.Size([1, 2, 3, 5])
    >>> model.complete(pixels[:, :1]).shape
    torch.Size([1, 2, 3])

    Raises:
        ValueError: If ``prefix`` is given.
    """

    def __init__(
        self, palette_size: int, grid: tuple[int, int], embed_dim: int, depth: int, num_heads: int, **kwargs: Any
    ) -> None:
        if kwargs.get("prefix"):
            raise ValueError(
                f"prefix ({kwargs['prefix']}) would let pixels of ImageGPT see themselves: leave it out, or take "
                "MiddleModel, which predicts no pixel of its prefix"
            )
        super().__init__(palette_size, grid, embed_dim, depth, num_heads, **kwargs)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute each pixel's logits from the pixels before it, row by row: (B, r, s) -> (B, r, s, palette_size)."""
        return self.logits(self._before_each(pixels))

    def forward_features(self, pixels: Tensor) -> Tensor:
        """Compute the states that predict each pixel: (B, r, s) -> (B, r s, D)."""
        return self.decoder.forward_features(self._before_each(pixels))

    @torch.no_grad()
    def complete(
        self, rows: Tensor, temperature: float = 1.0, top_k: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Complete images below their first rows: (B, r', s) -> (B, r, s).

        Args:
            rows: The first rows of the images. (B, 0, s) writes whole images.
            temperature: Pixels are drawn from the softmax of ``logits / temperature``. 0 takes the most probable.
            top_k: Number of most probable colours to draw from. None means all colours.
            generator: Source of the random draws.
        """
        known = self._sequence(rows)
        prompt = F.pad(known, (1, 0), value=self.no_colour)
        steps = self.decoder.max_length - known.shape[1]
        if steps:
            sampling = Sampling(temperature, top_k, forbidden=self.no_colour, generator=generator)
            known = torch.cat([known, sample(self.decoder, prompt, None, steps, None, sampling).tokens], dim=1)
        return rearrange(known, "b (r s) -> b r s", r=self.grid[0])

    def redraw(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the lower half of images anew, given the upper half: (B, r, s) -> (B, r, s)."""
        return self.complete(pixels[:, : self.completed_rows.start], generator=generator)

    def _before_each(self, pixels: Tensor) -> Tensor:
        """Return the token before each pixel, and the start token before the first pixel: (B, r, s) -> (B, r s)."""
        sequence = self._sequence(pixels)
        if sequence.shape[1] != self.decoder.max_length:
            raise ValueError(f"pixels have shape {tuple(pixels.shape)}: give whole images of {self.grid} pixels")
        return F.pad(sequence[:, :-1], (1, 0), value=self.no_colour)

    def _sequence(self, rows: Tensor) -> Tensor:
        """Check rows of pixels and return them as a sequence: (B, r', s) -> (B, r' s)."""
        if rows.ndim != 3 or rows.shape[1] > self.grid[0] or rows.shape[2] != self.grid[1]:
            raise ValueError(
                f"pixels have shape {tuple(rows.shape)}: give rows of images of {self.grid} pixels, (B, r, s)"
            )
        self.check_colours(rows)
        return rearrange(rows, "b r s -> b (r s)").long()
