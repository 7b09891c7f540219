"""Tensors of a model of another library, and what is known of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vit.weights.formats.format import Arguments, State
from vit.weights.tensor_files import is_whole

# Keys under which files of other libraries keep their tensors: DINO's teacher, averaged weights, weights. The first key
# that is there counts.
INSIDE = ("teacher", "model_ema", "state_dict_ema", "state_dict", "model", "module")


@dataclass(frozen=True)
class Source:
    """Tensors of a model of another library, and what else is known of it.

    Attributes:
        state: The tensors under their names there.
        origin: Where they come from, in words.
        stated: Arguments of ``VisionTransformer`` that are known otherwise than from the tensors.
        data: ``mean``, ``std``, ``class_names`` and so on, as far as they are known.
        config: All arguments, if the tensors are of a model of this package.
    """

    state: State
    origin: str
    stated: Arguments = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    config: Arguments | None = None


def holds_tensors(part: Any) -> bool:
    """Return whether a part of a file's contents is a mapping to tensors, perhaps beside other things."""
    return isinstance(part, Mapping) and any(isinstance(value, Tensor) for value in part.values())


def unwrap(contents: Any) -> Any:
    """Return the part of a file's contents in which the tensors lie, or the contents themselves."""
    parts = [contents.get(name) for name in INSIDE] if isinstance(contents, Mapping) else []
    return next((part for part in parts if holds_tensors(part)), contents)


def find_tensors(contents: Any, origin: str) -> State:
    """Return the tensors in a state dict or in the contents of a file, by name."""
    contents = unwrap(contents)
    if not isinstance(contents, Mapping):
        raise ValueError(f"{origin} holds a {type(contents).__name__}, and a state dict is expected: tensors by name")
    state = {name: value.cpu() for name, value in contents.items() if isinstance(value, Tensor)}
    if not state or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{origin} holds no state dict: tensors by name are expected")
    for name, tensor in state.items():
        if not is_whole(tensor):
            raise ValueError(f"{origin} is damaged: {name} is no plain array of {tuple(tensor.shape)} numbers")
    return state


def origin_of(module: nn.Module) -> str:
    """Return what messages call a module.

    >>> origin_of(nn.Linear(2, 3))
    'a Linear of torch'
    """
    return f"a {type(module).__name__} of {type(module).__module__.split('.')[0]}"


def source_of(module: nn.Module, stated: Arguments, data: dict[str, Any]) -> Source:
    """Return the tensors of a module, with what its library tells of it."""
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    return Source(state, origin_of(module), stated, data)
