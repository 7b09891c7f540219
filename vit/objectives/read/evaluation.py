"""Sums over the texts of an evaluation, and the scores that follow from them.

Letters in the einops patterns: b texts, t tokens, v tokens of the alphabet.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.support.precision import most_precise

IGNORED = -1  # target of what follows the end of a text
MISREAD = 16


def next_tokens(tokens: Tensor, end: int) -> Tensor:
    """Return the token after each token of texts, and -1 after the end: (B, T) -> (B, T - 1).

    >>> next_tokens(torch.tensor([[10, 4, 2, 11, 11], [10, 7, 11, 11, 11]]), end=11)
    tensor([[ 4,  2, 11, -1],
            [ 7, 11, -1, -1]])
    """
    return tokens[:, 1:].masked_fill(tokens[:, :-1] == end, IGNORED)


class TextEvaluation:
    """Sums over the batches of an evaluation, exact for any number of processes and any size of the last batch.

    A text counts as read if each of its tokens, its end included, is the most probable one after the true tokens before
    it: exactly then, greedy decoding writes it.
    """

    def __init__(self, max_length: int, device: torch.device) -> None:
        precise = most_precise(device)
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        self.texts = torch.zeros(2, max_length + 1, dtype=torch.long, device=device)  # all and read, by their length
        self.tokens = torch.zeros(2, dtype=torch.long, device=device)  # all and correct
        self.misread: list[tuple[Tensor, Tensor]] = []

    def update(self, logits: Tensor, targets: Tensor, images: Tensor) -> None:
        """Add texts: logits (B, T, V), targets of ``next_tokens`` (B, T), images (B, C, H, W)."""
        self.loss_sum += F.cross_entropy(
            rearrange(logits.float(), "b t v -> b v t"), targets, reduction="sum", ignore_index=IGNORED
        )
        counts = targets != IGNORED
        correct = (logits.argmax(dim=-1) == targets) & counts
        self.tokens += torch.stack([counts.sum(), correct.sum()])
        lengths, is_read = counts.sum(dim=1) - 1, correct.sum(dim=1) == counts.sum(dim=1)
        self.texts[0].index_add_(0, lengths, torch.ones_like(lengths))
        self.texts[1].index_add_(0, lengths, is_read.long())
        for row in (~is_read).nonzero()[: MISREAD - len(self.misread), 0].tolist():
            self.misread.append((images[row].cpu(), targets[row].cpu()))

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.loss_sum, self.texts, self.tokens]

    @property
    def count(self) -> int:
        """Number of texts."""
        return int(self.texts[0].sum())

    @property
    def accuracy(self) -> float:
        """Share of the texts that are read without a mistake."""
        return self.texts[1].sum().item() / max(self.count, 1)

    @property
    def loss(self) -> float:
        """Mean cross-entropy per token, without label smoothing."""
        return self.loss_sum.item() / max(int(self.tokens[0]), 1)

    def scores(self) -> dict[str, Any]:
        """Return the scores of the evaluation, and the accuracy of the texts of each length, ready for JSON."""
        return {
            "accuracy": self.accuracy,
            "count": self.count,
            "token_accuracy": self.tokens[1].item() / max(int(self.tokens[0]), 1),
            "loss": self.loss,
            "lengths": [
                {"length": length, "accuracy": read / texts, "support": texts}
                for length, (texts, read) in enumerate(self.texts.T.tolist())
                if texts
            ],
        }
