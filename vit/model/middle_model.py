"""A model that fills in the middle rows of an image from the rows above and below.

Letters in the einops patterns: b batch, r s rows and columns of an image.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.model.generation import Sampling, sample
from vit.model.pixel_model import PixelModel


class MiddleModel(PixelModel):
    """Predicts the middle half of the rows pixel by pixel, given the rows above and below (Bavarian et al. 2022).

    The given rows come first in the sequence and see each other both ways, as the prefix of a ``TransformerDecoder``;
    each pixel of the middle sees them and the pixels of the middle before it. A position is a place in this sequence,
    not in the image. For the arguments, see ``PixelModel``.

    >>> model = MiddleModel(palette_size=5, grid=(4, 3), embed_dim=24, depth=1, num_heads=3).eval()
    >>> pixels = torch.randint(5, (1, 4, 3))
    >>> model(pixels).shape
    torch.Size([1, 4, 3, 5])
    >>> model.complete(pixels)[:, [0, 3]].equal(pixels[:, [0, 3]])
    True

    Raises:
        ValueError: If the image has fewer than four rows.
    """

    def __init__(
        self, palette_size: int, grid: tuple[int, int], embed_dim: int, depth: int, num_heads: int, **kwargs: Any
    ) -> None:
        outside = grid[0] // 4  # rows above, and as many below
        if not outside:
            raise ValueError(f"an image of {grid[0]} rows has no middle between rows: give it at least 4")
        prefix = 1 + 2 * outside * grid[1]  # with the start token
        super().__init__(palette_size, grid, embed_dim, depth, num_heads, prefix=prefix, **kwargs)
        self.middle = slice(outside, grid[0] - outside)

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the logits of the middle rows; those of the given rows are zero: (B, r, s) -> (B, r, s, V)."""
        given, middle = self._parts(pixels)
        self.check_colours(middle)
        sequence = rearrange(torch.cat([given, middle], dim=1), "b r s -> b (r s)").long()
        logits = self.logits(F.pad(sequence[:, :-1], (1, 0), value=self.no_colour))
        above, below = self.middle.start, self.grid[0] - self.middle.stop
        return F.pad(logits[:, above + below :], (0, 0, 0, 0, above, below))

    def scored_pixels(self, pixels: Tensor) -> Tensor:
        """Return which pixels an evaluation counts: those of the middle rows. (B, r, s) -> boolean (B, r, s)."""
        counted = torch.zeros_like(pixels, dtype=torch.bool)
        counted[:, self.middle] = True
        return counted

    @property
    def completed_rows(self) -> slice:
        """Rows that ``redraw`` draws: those between the given ones."""
        return self.middle

    @torch.no_grad()
    def complete(
        self,
        pixels: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the middle rows, whose pixels are not read: (B, r, s) -> (B, r, s).

        For the arguments, see ``ImageGPT.complete``.
        """
        given, middle = self._parts(pixels)
        prompt = F.pad(rearrange(given, "b r s -> b (r s)").long(), (1, 0), value=self.no_colour)
        sampling = Sampling(temperature, top_k, forbidden=self.no_colour, generator=generator)
        drawn = sample(self.decoder, prompt, None, middle.shape[1] * middle.shape[2], None, sampling).tokens
        completed = pixels.long().clone()
        completed[:, self.middle] = rearrange(drawn, "b (r s) -> b r s", s=self.grid[1])
        return completed

    def redraw(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the middle rows of images anew, given the rows above and below: (B, r, s) -> (B, r, s)."""
        return self.complete(pixels, generator=generator)

    def _parts(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Check images, and return the given rows and the middle rows."""
        self.check_whole(pixels)
        given = torch.cat([pixels[:, : self.middle.start], pixels[:, self.middle.stop :]], dim=1)
        self.check_colours(given)
        return given, pixels[:, self.middle]
