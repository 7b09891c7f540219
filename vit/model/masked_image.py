"""A model that predicts hidden pixels from visible pixels, as masked language models predict words.

Letters in the einops patterns: b batch, v colours, r rows and s columns of an image.
"""

import math

import torch
from einops import rearrange, reduce
from torch import Tensor

from vit.model.generation import Sampling, check_scores
from vit.model.pixel_model import PixelModel
from vit.support.checks import check_positive_int


class MaskedImageModel(PixelModel):
    """Predicts hidden pixels from both sides: the blocks of ``ImageGPT`` without the causal mask (Devlin et al. 2019).

    For the arguments, see ``PixelModel``.

    >>> model = MaskedImageModel(palette_size=5, grid=(2, 3), embed_dim=24, depth=1, num_heads=3).eval()
    >>> pixels, hidden = torch.tensor([[[4, 0, 1], [2, 2, 3]]]), torch.tensor([[[0, 0, 0], [1, 1, 1]]]).bool()
    >>> model(pixels, hidden).shape  # the logits of each pixel, given those that are not hidden
    torch.Size([1, 2, 3, 5])
    >>> model.complete(pixels, hidden)[0, 0]
    tensor([4, 0, 1])
    """

    causal = False

    def forward(self, pixels: Tensor, hidden: Tensor) -> Tensor:
        """Compute the logits of each pixel from the visible pixels: (B, r, s) -> (B, r, s, palette_size).

        Args:
            pixels: Numbers of colours, (B, r, s). Numbers of hidden pixels are not read.
            hidden: The hidden pixels, boolean (B, r, s).

        Raises:
            ValueError: If shapes differ from the grid, or a colour is not in the palette.
        """
        self._check(pixels, hidden)
        return self.logits(rearrange(pixels.long().masked_fill(hidden, self.no_colour), "b r s -> b (r s)"))

    def forward_features(self, pixels: Tensor) -> Tensor:
        """Compute the states of all pixels if no pixel is hidden: (B, r, s) -> (B, r s, D)."""
        self.check_whole(pixels)
        self.check_colours(pixels)
        return self.decoder.forward_features(rearrange(pixels, "b r s -> b (r s)"))

    def forward_inputs(self, pixels: Tensor, scored: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments of ``forward`` for predicting the scored pixels: the images, and which are hidden."""
        return pixels, self.unseen_pixels(scored)

    def scored_pixels(self, pixels: Tensor) -> Tensor:
        """Return which pixels an evaluation scores, the same in each image: half. (B, r, s) -> boolean (B, r, s)."""
        half = torch.full((1,), 0.5, device=pixels.device)
        return self.hide(pixels[:1], half, torch.Generator().manual_seed(0)).expand_as(pixels)

    def scored_in_training(self, pixels: Tensor) -> Tensor:
        """Return which pixels the loss of a training step scores: a random share of each image."""
        return self.hide(pixels, torch.rand(len(pixels), device=pixels.device))

    def unseen_pixels(self, scored: Tensor) -> Tensor:
        """Return which pixels the model does not see: the scored ones."""
        return scored

    def hide(self, pixels: Tensor, shares: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Choose pixels to hide, at least one per image: (B, r, s), shares (B,) -> boolean (B, r, s)."""
        noise = torch.rand(pixels.shape, generator=generator).to(pixels.device)
        noise = rearrange(noise, "b r s -> b (r s)")
        count = (shares * noise.shape[1]).ceil().clamp(min=1)
        rank = noise.argsort(dim=1).argsort(dim=1)
        return rearrange(rank < count[:, None], "b (r s) -> b r s", r=self.grid[0])

    @torch.no_grad()
    def complete(
        self,
        pixels: Tensor,
        hidden: Tensor,
        steps: int = 16,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Fill in the hidden pixels in random order, some in each step: (B, r, s) -> (B, r, s).

        With one pixel per step, the image is a draw from the model's distribution (Uria et al. 2014). After step t of
        T, the share ``cos(pi t / 2 T)`` is still hidden. So the first steps fill in few pixels, because all later
        pixels build on them (Chang et al. 2022, MaskGIT, sec. 3.2). MaskGIT fills in the most certain pixels first.
        Here the order is random, since the most certain pixels are background, which would spread.

        Args:
            pixels: Numbers of colours, (B, r, s). Numbers of hidden pixels are not read.
            hidden: The hidden pixels, boolean (B, r, s).
            steps: Number of forward passes.
            temperature: Pixels are drawn from the softmax of ``logits / temperature``. 0 takes the most probable.
            generator: Source of the random order and draws.

        Raises:
            ValueError: If ``forward`` raises it, ``steps`` or ``temperature`` is out of its range, a logit is NaN, or
                the model is in training mode.
        """
        if self.training:
            raise ValueError(
                "the model is in training mode, in which dropout changes what it draws: call .eval() first"
            )
        check_positive_int("steps", steps)
        self._check(pixels, hidden)
        sampling = Sampling(temperature, generator=generator)
        pixels, hidden = (rearrange(x, "b r s -> b (r s)").clone() for x in (pixels.long(), hidden))
        count = reduce(hidden.float(), "b n -> b 1", "sum")
        turns = torch.rand(hidden.shape, generator=generator, device=hidden.device).masked_fill(~hidden, torch.inf)
        turn = turns.argsort(dim=1).argsort(dim=1)  # 0 for the first hidden pixel of an image
        for step in range(1, steps + 1):
            whole = (rearrange(x, "b (r s) -> b r s", r=self.grid[0]) for x in (pixels, hidden))
            log_probabilities = rearrange(self(*whole), "b r s v -> b (r s) v").float().log_softmax(dim=-1)
            drawn = sampling.choose(rearrange(log_probabilities, "b n v -> (b n) v"))
            drawn = rearrange(drawn, "(b n) -> b n", b=len(pixels))
            left = (count * math.cos(math.pi * step / (2 * steps))).floor()
            filled = hidden & (turn < count - left)
            pixels, hidden = torch.where(filled, drawn, pixels), hidden & ~filled
        check_scores(reduce(log_probabilities, "b n v -> b", "sum"))
        return rearrange(pixels, "b (r s) -> b r s", r=self.grid[0])

    def redraw(self, pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the lower half of images anew, given the upper half: (B, r, s) -> (B, r, s)."""
        hidden = torch.zeros_like(pixels, dtype=torch.bool)
        hidden[:, self.completed_rows] = True
        return self.complete(pixels, hidden, generator=generator)

    def _check(self, pixels: Tensor, hidden: Tensor) -> None:
        if tuple(pixels.shape[1:]) != self.grid or hidden.shape != pixels.shape or hidden.dtype != torch.bool:
            raise ValueError(
                f"pixels have shape {tuple(pixels.shape)} and hidden {tuple(hidden.shape)} of {hidden.dtype}: give "
                f"both as (batch, {self.grid[0]}, {self.grid[1]}), and hidden in torch.bool"
            )
        self.check_colours(pixels.masked_fill(hidden, 0))
