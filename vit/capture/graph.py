"""Finds which attentions a tensor depends on. It walks the autograd graph and computes nothing."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import Node


def graph_alone() -> AbstractContextManager[None]:
    """Return a context that records the autograd graph alone, without the tensors that a backward pass needs."""
    return torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: None)


def attentions_behind(result: Node | Tensor, attentions: Sequence[Node]) -> set[int]:
    """Return the indices of the attentions that a result was computed from.

    >>> attn, unused = (torch.ones(2, requires_grad=True) * 1 for _ in range(2))
    >>> attentions_behind(attn.sum(), [attn.grad_fn, unused.grad_fn])
    {0}

    Args:
        result: A tensor, or the node of the autograd graph that made it.
        attentions: The node that made each attention. No two may be the same.
    """
    numbers = {node: number for number, node in enumerate(attentions)}
    found, visited = set(), set()
    waiting = [result.grad_fn if isinstance(result, Tensor) else result]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in numbers:
            found.add(numbers[node])
        waiting += [following for following, _ in node.next_functions]
    return found
