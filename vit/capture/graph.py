"""Finds which attentions a tensor depends on. It walks the autograd graph and computes nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode


class ThroughDetach(TorchFunctionMode):
    """A context in which ``detach()`` and ``.data`` keep the graph: values flow through them as well."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the tensor itself in place of one without a graph."""
        return args[0] if func in (Tensor.detach, Tensor.data.__get__) else func(*args, **(kwargs or {}))


def graph_alone() -> AbstractContextManager[None]:
    """Return a context that records the autograd graph alone, without the tensors that a backward pass needs."""
    return torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: None)


def attentions_behind(result: Node | Tensor | None, attentions: Sequence[Node | None]) -> set[int]:
    """Return the indices of the attentions that a result was computed from.

    >>> attn, unused = (torch.ones(2, requires_grad=True) * 1 for _ in range(2))
    >>> attentions_behind(attn.sum(), [attn.grad_fn, unused.grad_fn])
    {0}

    Args:
        result: A tensor, or the node of the autograd graph that made it; None if it has no graph.
        attentions: The node that made each attention, or None. No two nodes may be the same.
    """
    numbers = {node: number for number, node in enumerate(attentions)}
    found, visited = set(), set()
    waiting: list[Node | None] = [result.grad_fn if isinstance(result, Tensor) else result]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in numbers:
            found.add(numbers[node])
        waiting += [following for following, _ in node.next_functions]
    return found
