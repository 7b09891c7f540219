"""A device that calls itself mps, computes on the CPU, and like Apple's GPUs has no float64."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

MPS = torch.device("mps", 0)


class OnMps(torch.Tensor):
    """A tensor on the pretended device; ``inner`` has its values."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "OnMps":
        if inner.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        shape = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        # Inside torch it is on meta: a build without support for mps refuses to index what is there.
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="meta", **shape)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    device = property(lambda self: MPS)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Makes tensors that are asked for on mps."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values; the result is on the device that is asked for, or that of the inputs."""
    found = []
    tree_map(lambda each: found.append(each) if isinstance(each, torch.Tensor) else None, (args, kwargs))
    on_mps = any(isinstance(each, OnMps) for each in found)
    others = [each for each in found if not isinstance(each, OnMps) and each.ndim]
    if on_mps and others and "index" not in str(func) and "copy" not in str(func):
        raise RuntimeError(f"{func}: all tensors must be on the same device, and some are on cpu, others on mps")
    target = kwargs.get("device")
    if target is not None:
        on_mps = torch.device(target).type in ("mps", "meta")  # the device inside, which x.to(y) takes
        kwargs = kwargs | {"device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map(lambda each: each.inner if isinstance(each, OnMps) else each, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if str(func).split(".")[1].endswith("_") and isinstance(args[0], torch.Tensor):  # in place
        return args[0]
    return tree_map(lambda each: OnMps(each) if on_mps and isinstance(each, torch.Tensor) else each, result)


@contextmanager
def pretended_mps() -> Iterator[torch.device]:
    """Yield a device that calls itself mps."""
    with Pretending():
        yield MPS
