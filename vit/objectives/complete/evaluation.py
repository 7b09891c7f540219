"""Sums over the predicted pixels of an evaluation, for the model and for simple baselines.

Letters in the einops patterns: b images, r s rows and columns of pixels, v colours.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.support.precision import most_precise


class PixelStatistics:
    """How often each colour occurs in training images, alone and to the right of each colour (``count_pixels``)."""

    def __init__(self, counts: Tensor) -> None:
        # One more than was counted, so that colours that never occurred are improbable, not impossible.
        self.histogram = ((counts.sum(dim=0) + 1) / (counts.sum() + counts.shape[1])).log()
        self.neighbours = ((counts + 1) / (counts + 1).sum(dim=1, keepdim=True)).log()

    def losses(self, pixels: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """Return the negative log-probability of each pixel under each baseline: (B, r, s) -> (B, r, s).

        If the left neighbour is ``hidden`` from the model, boolean (B, r, s), the baseline is the histogram.
        """
        to_the_left = F.pad(pixels[:, :, :-1] + 1, (1, 0))  # 0 in the first column
        of_histogram = -self.histogram[pixels]
        is_hidden = F.pad(hidden[:, :, :-1], (1, 0))
        return {
            "uniform": torch.full(pixels.shape, math.log(len(self.histogram)), device=pixels.device),
            "histogram": of_histogram,
            "left neighbour": torch.where(is_hidden, of_histogram, -self.neighbours[to_the_left, pixels]),
        }


def count_pixels(pixels: Tensor, palette_size: int) -> Tensor:
    """Count the colours of images, in the first column and to the right of each colour: (B, r, s) -> (1 + K, K).

    >>> count_pixels(torch.tensor([[[1, 0, 1], [1, 0, 0]]]), 2)
    tensor([[0, 2],
            [1, 1],
            [2, 0]])
    """
    to_the_left = F.pad(pixels[:, :, :-1] + 1, (1, 0))
    pairs = (to_the_left * palette_size + pixels).flatten()
    return rearrange(pairs.bincount(minlength=(palette_size + 1) * palette_size), "(l v) -> l v", v=palette_size)


class CompletionEvaluation:
    """Sums over the batches of an evaluation: the losses of the model and of baselines on the predicted pixels."""

    def __init__(self, statistics: PixelStatistics, area: int, device: torch.device) -> None:
        self.area = area  # pixels of a token
        self.statistics = statistics
        self.counts = torch.zeros(3, dtype=torch.long, device=device)  # images, pixels, pixels that are right
        precise = most_precise(device)
        self.names = ("uniform", "histogram", "left neighbour")
        self.losses = torch.zeros(1 + len(self.names), dtype=precise, device=device)  # of the model and the baselines

    def update(self, logits: Tensor, pixels: Tensor, counted: Tensor, hidden: Tensor) -> None:
        """Add images: logits (B, r, s, V), numbers of colours (B, r, s), and two boolean masks (B, r, s).

        ``counted`` are the pixels that are counted. ``hidden`` are the pixels that the model did not see while it
        predicted the pixel to their right.
        """
        losses = F.cross_entropy(rearrange(logits.float(), "b r s v -> b v r s"), pixels, reduction="none")
        right = (logits.argmax(dim=-1) == pixels) & counted
        self.counts += torch.tensor([len(pixels), counted.sum(), right.sum()], device=self.counts.device)
        of_baselines = self.statistics.losses(pixels, hidden)
        for place, of_each in enumerate([losses, *(of_baselines[name] for name in self.names)]):
            self.losses[place] += of_each[counted].sum(dtype=self.losses.dtype)

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.counts, self.losses]

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.counts[0])

    @property
    def accuracy(self) -> float:
        """Share of the pixels whose colour is the most probable one."""
        return self.counts[2].item() / max(int(self.counts[1]), 1)

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a pixel, in nats."""
        return self.losses[0].item() / max(int(self.counts[1]), 1)

    @property
    def bits_per_pixel(self) -> float:
        """Mean number of bits that a pixel takes under the model."""
        return self._bits()[0]

    def scores(self) -> dict[str, Any]:
        """Return the scores of the evaluation, ready for JSON: bits per pixel, and those of the baselines."""
        bits = self._bits()
        return {
            "accuracy": self.accuracy,
            "count": self.count,
            "loss": self.loss,
            "bits_per_pixel": bits[0],
            "baselines": dict(zip(self.names, bits[1:], strict=True)),
        }

    def _bits(self) -> list[float]:
        return (self.losses / max(int(self.counts[1]), 1) / math.log(2) / self.area).tolist()
