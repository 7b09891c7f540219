"""Detects hooks and replaced forwards."""

from torch import nn


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks, or a ``forward`` of its own instead of its class's."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(hooks) or "forward" in module.__dict__


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is of exactly this class and not hooked, so that its weights can be used directly.

    Adapters and quantised layers are not plain: they have to be called.
    """
    return type(module) is kind and not is_hooked(module)
