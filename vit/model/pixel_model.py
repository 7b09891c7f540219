"""The base of models that predict pixels: a decoder over the colours of a palette.

Letters in the einops patterns: b batch, v colours, r rows and s columns of an image.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.model.decoder import TransformerDecoder
from vit.model.generation import INTEGER_DTYPES, first_outside


class PixelModel(nn.Module, ABC):
    """A decoder over the colours of a palette and one extra token, "no colour".

    A subclass defines which pixels it predicts from which, by ``forward`` and the methods that differ from those here.
    ``forward`` takes what ``inputs`` returns, and computes the logits of each pixel.

    Args:
        palette_size: Number of entries of the palette: colours, or whole patches.
        grid: Rows and columns of an image.
        embed_dim: Channels of a token.
        depth: Number of decoder blocks.
        num_heads: Attention heads of a block.
        kwargs: Further arguments of ``TransformerDecoder``.
    """

    causal = True  # whether a pixel sees only the pixels before it

    def __init__(
        self, palette_size: int, grid: tuple[int, int], embed_dim: int, depth: int, num_heads: int, **kwargs: Any
    ) -> None:
        super().__init__()
        self.grid = tuple(grid)
        self.no_colour = palette_size
        sizes = (palette_size + 1, embed_dim, depth, num_heads, grid[0] * grid[1])
        self.decoder = TransformerDecoder(*sizes, causal=self.causal, **kwargs)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: embeddings and learned positions."""
        return {f"decoder.{name}" for name in self.decoder.no_weight_decay()}

    def logits(self, sequence: Tensor) -> Tensor:
        """Compute the logits of the colours for each token of a sequence: (B, r s) -> (B, r, s, palette_size)."""
        logits = self.decoder(sequence)[..., : self.no_colour]
        return rearrange(logits, "b (r s) v -> b r s v", r=self.grid[0])

    def forward_inputs(self, pixels: Tensor, scored: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments of ``forward`` for predicting the scored pixels, boolean (B, r, s): the images alone."""
        return (pixels,)

    def scored_pixels(self, pixels: Tensor) -> Tensor:
        """Return which pixels an evaluation scores, the same in each image: all. (B, r, s) -> boolean (B, r, s)."""
        return torch.ones_like(pixels, dtype=torch.bool)

    def scored_in_training(self, pixels: Tensor) -> Tensor:
        """Return which pixels the loss of a training step scores, as in an evaluation."""
        return self.scored_pixels(pixels)

    def unseen_pixels(self, scored: Tensor) -> Tensor:
        """Return which pixels the model cannot see when it predicts their right neighbour: here, none."""
        return torch.zeros_like(scored)

    @property
    def completed_rows(self) -> slice:
        """Rows that ``redraw`` draws: the lower half."""
        return slice(self.grid[0] // 2, self.grid[0])

    @abstractmethod
    def redraw(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw ``completed_rows`` of images anew, given their other rows: (B, r, s) -> (B, r, s)."""

    def check_whole(self, pixels: Tensor) -> None:
        """Check that pixels are those of whole images.

        Raises:
            ValueError: If their shape is not (B, r, s).
        """
        if tuple(pixels.shape[1:]) != self.grid:
            raise ValueError(f"pixels have shape {tuple(pixels.shape)}: give whole images of {self.grid} pixels")

    def check_colours(self, pixels: Tensor) -> None:
        """Check that pixels are numbers of colours in the palette.

        Raises:
            ValueError: If pixels are no integers, or, on the CPU, one is outside the palette.
        """
        count = self.no_colour
        if pixels.dtype not in INTEGER_DTYPES:
            raise ValueError(
                f"pixels are {pixels.dtype}: give the numbers of their colours, whole numbers below {count}"
            )
        # Only on the CPU in eager mode: a GPU would have to wait, and an exported program cannot branch on values.
        if pixels.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = first_outside(pixels, count)
            if outside is not None:
                raise ValueError(
                    f"pixel {outside} is none of the {count} colours (0 to {count - 1}): number colours from 0, or "
                    "build the model with a larger palette"
                )
