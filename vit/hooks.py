"""Whether somebody looks at what a module computes."""

from torch import nn


def is_watched(module: nn.Module) -> bool:
    """Whether a module has hooks, or a ``forward`` that was put in the place of its own."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(hooks) or "forward" in module.__dict__


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of exactly this kind and not watched, so that its weight says all it does.

    Adapters and quantised layers are not: they have to be called.
    """
    return type(module) is kind and not is_watched(module)
