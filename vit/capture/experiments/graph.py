"""Finds which attentions a tensor depends on. It walks the autograd graph and computes nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

# What torch says of it.
NO_GRADIENT = ("does not require grad", "not have been used in the graph", "modified by an inplace operation")
COPIES_OUT = (Tensor.numpy, Tensor.__array__, Tensor.__deepcopy__)  # which torch refuses within the graph


class FollowValues(TorchFunctionMode):
    """A context in which gradients follow values through ``detach()`` and ``no_grad()`` too.

    Parameters alone start no graph. What a model copies out of the graph, as for a log, is detached.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, within the autograd graph if an argument is in it."""
        if func in (Tensor.detach, Tensor.data.__get__):
            return args[0]
        if func in COPIES_OUT:
            return func(args[0].detach(), *args[1:], **(kwargs or {}))
        with torch.enable_grad() if _in_graph((*args, *(kwargs or {}).values())) else nullcontext():
            return func(*args, **(kwargs or {}))


def _in_graph(arguments: Iterable[Any]) -> bool:
    return any(
        _in_graph(argument)
        if isinstance(argument, list | tuple)
        else isinstance(argument, Tensor) and argument.requires_grad and not _is_parameter(argument)
        for argument in arguments
    )


def _is_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter, or a view of one that was made without a graph."""
    return isinstance(tensor, nn.Parameter) or (tensor.grad_fn is None and isinstance(tensor._base, nn.Parameter))


def graph_alone() -> AbstractContextManager[None]:
    """Return a context that records the autograd graph alone, without the tensors that a backward pass needs."""
    return torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: None)


@contextmanager
def gradients_of(model: nn.Module, remedy: str) -> Iterator[None]:
    """Within the context, a gradient that does not exist is a ValueError with a remedy."""
    try:
        yield
    except RuntimeError as error:  # of torch.autograd.grad
        if not any(reason in str(error) for reason in NO_GRADIENT):
            raise
        raise ValueError(
            f"the logits of {type(model).__name__} have no gradient for some of its layers or pixels, as after "
            f"detach(), under no_grad(), in quantised layers or if values are changed in place: {remedy}"
        ) from error


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
