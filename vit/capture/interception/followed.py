"""Follows attention weights from the softmax that makes them to the product with the values.

Steps in between, such as mixing of heads, a second softmax or rescaling, are then part of the weights (CaiT, DeepViT,
ConViT).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Weights(NamedTuple):
    """What is known of a tensor that was computed from softmaxes."""

    shape: tuple[int, int]  # numbers of queries and keys
    softmaxes: frozenset[int]  # numbers of the softmaxes, counted in the order of their calls


class FollowedWeights:
    """The tensors of one pass that were computed from softmaxes.

    Attributes:
        known: Each tensor's ``Weights``.
        unused: The shape of each softmax that has not multiplied values yet.
        without_images: The shape of each softmax of two axes: of the classes, or of weights that all images share.
        num_softmaxes: How many softmaxes over keys there were.
    """

    def __init__(self) -> None:
        self.known = WeakTensorKeyDictionary()
        self.unused: dict[int, tuple[int, ...]] = {}
        self.without_images = WeakTensorKeyDictionary()
        self.num_softmaxes = 0

    def mark(self, probabilities: Tensor, before: Weights | None) -> None:
        """Start to follow the result of a softmax over keys. ``before`` is what is known of its input."""
        queries, keys = probabilities.shape[-2:]
        if probabilities.ndim == 4 and 1 < queries != keys == probabilities.shape[1]:
            queries = keys  # the axes are (images, queries, heads, keys)
        softmaxes = before.softmaxes if before else frozenset()
        self.known[probabilities] = Weights((queries, keys), softmaxes | {self.num_softmaxes})
        if probabilities.ndim == 4:
            self.unused[self.num_softmaxes] = tuple(probabilities.shape)
        self.num_softmaxes += 1

    def mark_other_axis(self, probabilities: Tensor, keys: int) -> None:
        """Start to follow the result of a softmax over an axis other than the last, if one more axis is as long."""
        size, of_image = probabilities.shape[keys], probabilities.shape[1:]
        if probabilities.ndim in (3, 4) and keys % probabilities.ndim and size > 1 and of_image.count(size) == 2:
            self.known[probabilities] = Weights((size, size), frozenset())

    def are_weights_and_values(self, attn: Tensor, values: Tensor) -> bool:
        """Return whether two tensors are weights and the values that they multiply."""
        weights = self.known.get(attn)
        are_paired = attn.ndim == values.ndim < 5 or (attn.ndim, values.ndim) == (3, 4)
        return weights is not None and attn.shape[-2:] == weights.shape and are_paired

    def mark_used(self, attn: Tensor) -> None:
        """Record that the softmaxes of these weights have multiplied values."""
        for softmax in self.known[attn].softmaxes:
            self.unused.pop(softmax, None)

    def follow(self, result: Any, arguments: Iterable[Any]) -> None:
        """Follow weights to the results computed from them, if these still have an axis of queries and one of keys."""
        sources = [self.known[x] for x in tensors(arguments) if x in self.known]
        for made in tensors([result]) if sources else ():
            held = [source for source in sources if not Counter(source.shape) - Counter(made.shape)]
            if held and made.ndim >= 3:
                softmaxes = frozenset().union(*(source.softmaxes for source in held))
                self.known[made] = Weights(held[0].shape, softmaxes)


def tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, and those in their lists, tuples and dictionaries, but no nested tensors."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            with torch._C.DisableTorchFunction():  # modes that watch the model do not see this look
                is_nested = argument.is_nested
            if not is_nested:
                yield argument
        elif isinstance(argument, list | tuple):
            yield from tensors(argument)
        elif isinstance(argument, dict):
            yield from tensors(argument.values())
