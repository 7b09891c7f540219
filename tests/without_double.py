"""Tensors of the CPU that call themselves tensors of an Apple GPU, and refuse float64 as it does."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MPS, CPU = torch.device("mps"), torch.device("cpu")
WIDE = (torch.float64, torch.complex128)


def on_mps(*given: Tensor | nn.Module) -> None:
    """Mark tensors, or those of a module: in ``AppleGPU`` they are on the device "mps"."""
    for one in given:
        for tensor in [one] if isinstance(one, Tensor) else [*one.parameters(), *one.buffers()]:
            tensor.is_on_mps = True


def _leaves(*given: Any) -> Iterator[Any]:
    for one in given:
        if isinstance(one, (list, tuple)):
            yield from _leaves(*one)
        else:
            yield one


def _is_on_mps(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and getattr(leaf, "is_on_mps", False)


def _is_device(leaf: Any) -> bool:
    return leaf == MPS if isinstance(leaf, torch.device) else isinstance(leaf, str) and leaf.startswith("mps")


class AppleGPU(TorchFunctionMode):
    """Computes as the CPU does. What is computed of tensors on "mps" is there as well, until it is copied to the CPU.

    Raises:
        TypeError: If a tensor on "mps" would be of float64.
        RuntimeError: If it meets one of float64 on the CPU.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        leaves = [*_leaves(args, *kwargs.values())]
        name = getattr(getattr(function, "__self__", None), "__name__", None) or function.__name__
        is_here = any(map(_is_on_mps, leaves))
        if name == "device":
            return MPS if is_here else function(*args)
        others = [leaf for leaf in leaves if isinstance(leaf, (torch.device, str))]
        to_cpu = name == "to" and len(args) > 1 and isinstance(args[1], Tensor) and not _is_on_mps(args[1])
        if is_here and (to_cpu or name in ("cpu", "tolist", "item") or CPU in others or "cpu" in others):
            return function(*(leaf.clone() if _is_on_mps(leaf) else leaf for leaf in args), **kwargs)
        if is_here and name in ("numpy", "__array__"):
            raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu()")
        is_moved = any(map(_is_device, others)) or (is_here and name in ("to", "copy_"))
        if is_here and not is_moved and any(isinstance(x, Tensor) and x.dtype in WIDE and x.ndim for x in leaves):
            raise RuntimeError(f"{name} is given float64 of the CPU and a tensor on mps")
        if is_moved and name != "copy_":
            copies = (leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in args)  # "to" may return its input
            args = [CPU if _is_device(leaf) else leaf for leaf in copies]
            kwargs = {key: CPU if _is_device(leaf) else leaf for key, leaf in kwargs.items()}
        found = function(*args, **kwargs)
        for leaf in _leaves(found) if is_here or is_moved else ():
            if isinstance(leaf, Tensor):
                if leaf.dtype in WIDE:
                    raise TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS doesn't support float64")
                leaf.is_on_mps = True
        return found
