"""Texts as rows of tokens: the letters of an alphabet, a token for the start, and one for the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Alphabet:
    """The letters that texts are made of; the token of a letter is its index.

    >>> alphabet = Alphabet("0123456789")
    >>> alphabet.encode(["42", "7"], length=3)
    tensor([[10,  4,  2, 11, 11],
            [10,  7, 11, 11, 11]])
    >>> alphabet.decode(torch.tensor([[4, 2, 11, 11], [7, 11, 3, 11]]))
    ['42', '7']

    Args:
        letters: The letters, each once.

    Raises:
        ValueError: If there are no letters, or one occurs twice.
    """

    letters: str

    def __post_init__(self) -> None:
        if not self.letters:
            raise ValueError("the alphabet has no letters: name those that texts are made of, such as 0123456789")
        twice = next((letter for letter in self.letters if self.letters.count(letter) > 1), None)
        if twice is not None:
            raise ValueError(f"the alphabet {self.letters!r} has {twice!r} twice: name each letter once")

    @property
    def start(self) -> int:
        """The token before a text."""
        return len(self.letters)

    @property
    def end(self) -> int:
        """The token after a text, which also fills the rest of its row."""
        return len(self.letters) + 1

    @property
    def size(self) -> int:
        """Number of tokens: the letters, start and end."""
        return len(self.letters) + 2

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Return texts of up to ``length`` letters as tokens from start to end: (N, length + 2).

        Raises:
            ValueError: If a text is longer, or has a letter that the alphabet lacks.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts {texts!r} is one text: give a list of texts")
        tokens = torch.full((len(texts), length + 2), self.end)
        tokens[:, 0] = self.start
        places = {letter: place for place, letter in enumerate(self.letters)}
        for row, text in enumerate(texts):
            if len(text) > length:
                most = f"more than the maximum of {length}"
                raise ValueError(f"text {text!r} has {len(text)} letters, {most}: shorten it, or raise the maximum")
            lacking = next((letter for letter in text if letter not in places), None)
            if lacking is not None:
                raise ValueError(f"text {text!r} has the letter {lacking!r}, which {self.letters!r} lacks: add it")
            tokens[row, 1 : len(text) + 1] = torch.tensor([places[letter] for letter in text], dtype=torch.long)
        return tokens

    def decode(self, tokens: Tensor) -> list[str]:
        """Decode tokens (N, T) to texts, each up to its first end token and without start tokens.

        Raises:
            ValueError: If a token is not in the alphabet, such as the -1 that pads a batch.
        """
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ValueError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give whole numbers (N, T)")
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= self.end:
            raise ValueError(
                f"tokens from {int(tokens.min())} to {int(tokens.max())} are not all in 0 to {self.end}: leave out "
                "rows of padding"
            )
        texts = []
        for row in tokens.tolist():
            written = row[: row.index(self.end)] if self.end in row else row
            texts.append("".join(self.letters[token] for token in written if token != self.start))
        return texts
