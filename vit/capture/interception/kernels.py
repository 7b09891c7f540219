"""Counts the attention kernels that a model runs, below all functions of torch that Python sees."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

KERNELS = ("scaled_dot_product", "native_multi_head_attention", "transformer_encoder_layer")


def count_kernels(model: nn.Module, images: Tensor) -> Counter[str]:
    """Return how often each kernel of attention runs: fused ones, and softmaxes of square matrices.

    An operation that compiles itself cannot be watched, and ends the count.
    """
    with torch.no_grad(), _CountKernels() as counting:
        try:
            model(images)
        except NotImplementedError:  # "no rule registered for HigherOrderOperator flex_attention"
            counting.counts["an operation that compiles itself, such as flex_attention,"] += 1
    return counting.counts


class _CountKernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the kernel, and count it if it is one of attention."""
        name = str(func.overloadpacket)
        is_matrix = args and isinstance(args[0], Tensor) and args[0].ndim > 2 and args[0].shape[-1] == args[0].shape[-2]
        if any(kernel in name for kernel in KERNELS) or (name == "aten._softmax" and is_matrix):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))
