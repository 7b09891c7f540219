"""Caches of a growing sequence, so that each token is projected once: keys and values, or a state of constant size.

Letters: B batch, H heads of keys and values, N new tokens, M tokens so far, d channels per head.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from vit.support.checks import check_positive_int


class KeyValueCache:
    """Keys and values of one attention layer while a sequence grows, for inference.

    In causal self-attention it grows with the sequence; in cross-attention it keeps the keys and values of the context.
    The first step allocates memory for ``max_length`` tokens, so that each step copies only the new ones. Cached
    tensors carry no gradient.

    >>> import torch
    >>> from vit.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, 2, causal=True)
    >>> x = torch.randn(1, 3, 8)
    >>> cache = KeyValueCache(max_length=3)
    >>> steps = [attention(x[:, i : i + 1], cache=cache) for i in range(3)]
    >>> torch.allclose(torch.cat(steps, dim=1), attention(x), atol=1e-6)
    True

    Args:
        max_length: Maximum number of tokens of a sequence.
    """

    def __init__(self, max_length: int) -> None:
        check_positive_int("max_length", max_length)
        self.max_length = max_length
        self.length = 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def __copy__(self) -> "KeyValueCache":
        """Copy the tensors as well: steps of two caches that share their memory would overwrite each other."""
        return copy.deepcopy(self)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append new tokens and return all so far: (B, H, N, d), (B, H, N, e) -> (B, H, M, d), (B, H, M, e).

        Raises:
            ValueError: If the cache is too short, or batch, heads, channels, dtype or device differ from those cached.
        """
        end = self.length + k.shape[-2]
        if end > self.max_length:
            raise ValueError(
                f"the cache has room for {self.max_length} tokens (max_length), and {end} are needed "
                f"({self.length} so far and {k.shape[-2]} new): make a longer cache"
            )
        if self._k is None:
            self._k, self._v = (x.new_empty(*x.shape[:2], self.max_length, x.shape[-1]) for x in (k, v))
        for new, room in ((k, self._k), (v, self._v)):
            if (*new.shape[:2], new.shape[-1], new.dtype, new.device) != (
                *room.shape[:2],
                *(room.shape[-1], room.dtype, room.device),
            ):
                raise ValueError(
                    f"the cache holds {room.dtype} of shape {tuple(room[..., : self.length, :].shape)} (batch, heads, "
                    f"tokens, channels), and the new tokens are {new.dtype} of shape {tuple(new.shape)}: make a cache "
                    "for each layer and batch"
                )
            room[..., self.length : end, :] = new.detach()
        self.length = end
        return self._k[..., :end, :], self._v[..., :end, :]

    def context(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of contexts of ``length`` tokens: (B, H, M, d), (B, H, M, e).

        Raises:
            ValueError: If the cached contexts have another number or length.
        """
        if (batch, length) != (len(self._k), self.length):
            raise ValueError(
                f"the cache holds {len(self._k)} contexts of {self.length} tokens, and {batch} of {length} are given: "
                "make a cache for each layer and context"
            )
        return self._k[..., :length, :], self._v[..., :length, :]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; ``rows`` may repeat a row or leave one out."""
        if self._k is not None:
            self._k, self._v = self._k[rows], self._v[rows]


class StateCache:
    """The state of one layer of causal attention while a sequence grows, for inference. Its size stays the same.

    Mechanisms with a state are "linear" and "recurrent". A state carries no gradient.

    >>> import torch
    >>> from vit.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, 2, causal=True, mechanism="linear")
    >>> x = torch.randn(1, 3, 8)
    >>> cache = StateCache()
    >>> steps = [attention(x[:, i : i + 1], cache=cache) for i in range(3)]
    >>> torch.allclose(torch.cat(steps, dim=1), attention(x), atol=1e-6)
    True
    """

    def __init__(self) -> None:
        self.length = 0
        self._state: Tensor | None = None

    def state_before(self, q: Tensor) -> Tensor | None:
        """Return the state before new tokens with these queries (B, H, N, d); None before the first token.

        Raises:
            ValueError: If batch, heads or device differ from those of the state.
        """
        state = self._state
        if state is not None and (state.shape[:2], state.device) != (q.shape[:2], q.device):
            raise ValueError(
                f"the cache holds a state of {tuple(state.shape[:2])} (batch, heads) on {state.device}, and the new "
                f"tokens are {tuple(q.shape[:2])} on {q.device}: make a cache for each layer and batch"
            )
        return state

    def replace(self, state: Tensor, tokens: int) -> None:
        """Keep the state after this number of new tokens."""
        self._state = state.detach()
        self.length += tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; ``rows`` may repeat a row or leave one out."""
        if self._state is not None:
            self._state = self._state[rows]


@contextmanager
def restored_on_error(caches: Iterable[KeyValueCache | StateCache]) -> Iterator[None]:
    """Restore caches if the ``with`` block raises an error, so that the next call can continue from there."""
    before = [(cache, dict(vars(cache))) for cache in caches]
    try:
        yield
    except BaseException:
        for cache, attributes in before:
            # Keys and values beyond the old length are never read.
            vars(cache).update(attributes)
        raise
