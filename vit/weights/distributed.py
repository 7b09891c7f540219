"""Distributed checkpoints: a folder of ``torch.distributed.checkpoint``, to which each process wrote its part.

``.metadata`` lists the tensors and their places in the ``.distcp`` files; Lightning adds ``meta.pt`` with everything
but weights and states of optimisers. Reading executes no code: torch itself would unpickle the list, and each number
beside the tensors, without checking what they call.
"""

import pathlib
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.planner import ReadItem

from vit.weights.tensor_files import LIST, read_file

REST = "meta.pt"
OPTIMIZER = "optimizer_"  # followed by its number
# All classes that torch writes into a list. Each of them only holds what it is given.
CLASSES = {
    **{name: getattr(metadata, name) for name in metadata.__all__},
    "_MEM_FORMAT_ENCODING": metadata._MEM_FORMAT_ENCODING,
    "_StorageInfo": filesystem._StorageInfo,
    "_get_layout": torch.serialization._get_layout,
    "Size": torch.Size,
    **dict.fromkeys(("PosixPath", "WindowsPath", "PurePosixPath"), pathlib.PurePosixPath),
}


def read_distributed(folder: Path) -> dict[str, Any]:
    """Return the contents of a distributed checkpoint as those of one file, on the CPU.

    Raises:
        ValueError: If it is damaged, or carries pickled code.
    """
    with _damaged(folder):
        reader = _Reader(folder)
        listed = reader.read_metadata()
        found = {
            name: torch.empty(about.size, dtype=about.properties.dtype)
            if isinstance(about, metadata.TensorStorageMetadata)
            else about
            for name, about in listed.state_dict_metadata.items()
        }
        _fill(found, reader)
        contents = _nested(found, listed.planner_data or {})
        states = [contents.pop(name) for name in sorted(contents) if name.startswith(OPTIMIZER)]
        for state in states:
            state["param_groups"] = [group for _, group in sorted(state["param_groups"].items())]
    return contents | ({"optimizer_states": [*map(numbered, states)]} if states else {}) | _read_rest(folder)


def read_description(folder: Path) -> dict[str, Any]:
    """Return what a distributed checkpoint holds besides tensors, after a check of all that torch would unpickle.

    Raises:
        ValueError: If it is damaged, or carries pickled code.
    """
    with _damaged(folder):
        reader = _Reader(folder)
        kinds = reader.read_metadata().state_dict_metadata
        values = {name: about for name, about in kinds.items() if isinstance(about, metadata.BytesStorageMetadata)}
        _fill(values, reader)
    return _read_rest(folder)


def _read_rest(folder: Path) -> dict[str, Any]:
    return read_file(folder / REST)[0] if (folder / REST).exists() else {}


class _Unpickler(pickle._Unpickler):  # the one written in Python, whose steps can be replaced
    """Reads a list: it knows the classes that torch writes there, and calls and changes nothing else."""

    dispatch = pickle._Unpickler.dispatch.copy()

    def load_build(self) -> None:
        """Set the attributes of an object, and of no class: these are shared by the whole process."""
        if callable(self.stack[-2]):
            raise pickle.UnpicklingError("unsupported state of a class")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if name in CLASSES:
            return CLASSES[name]
        raise pickle.UnpicklingError(f"unsupported class {module}.{name}")


class _Reader(checkpoint.FileSystemReader):
    """Reads the files of a folder, and none outside of it."""

    def read_metadata(self, *_: Any, **__: Any) -> metadata.Metadata:
        """Return the list of the tensors, after a check that the files hold as much as it says."""
        folder = Path(self.path)
        listed = _Unpickler(BytesIO((folder / LIST).read_bytes())).load()
        sizes = {path.name: path.stat().st_size for path in folder.glob("*.distcp") if path.is_file()}
        for place in listed.storage_data.values():
            size = sizes.get(place.relative_path)
            if size is None or min(place.offset, place.length) < 0 or place.offset + place.length > size:
                raise ValueError(f"{place.relative_path} lacks some of its bytes")
        tensors = [each for each in listed.state_dict_metadata.values() if hasattr(each, "properties")]
        if sum(abs(each.size.numel()) * each.properties.dtype.itemsize for each in tensors) > sum(sizes.values()):
            raise ValueError("its tensors are larger than its files")
        return listed


class _Planner(checkpoint.DefaultLoadPlanner):
    """Fills a dictionary by name."""

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        """Take a number or a text; torch's own method would execute pickled code."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _fill(found: dict[str, Any], reader: _Reader) -> None:
    """Read tensors and other values into a dictionary, in place."""
    planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings(action="ignore"):  # torch warns that this process reads alone
        checkpoint.load(found, storage_reader=reader, planner=planner, no_dist=True)


@contextmanager
def _damaged(folder: Path) -> Iterator[None]:
    """Turn any error into a ValueError about the checkpoint: what is read may be arbitrary bytes."""
    try:
        yield
    except (Exception, checkpoint.CheckpointException) as error:  # torch derives its own from BaseException
        if "unsupported" in str(error).lower():
            raise ValueError(
                f"{folder} is refused: it carries pickled code, which could do anything when loaded; none of it was "
                "executed"
            ) from None
        reason = str(error).strip().rpartition("\n")[2] or type(error).__name__
        raise ValueError(
            f"{folder} is damaged, or was not written to its end ({reason[:80]}): take another copy"
        ) from None


def _nested(found: dict[str, Any], places: dict[str, tuple[str | int, ...]]) -> dict[str, Any]:
    """Return values in nested dictionaries: ``{"a.b": 1}`` at ("a", "b") becomes ``{"a": {"b": 1}}``."""
    contents: dict[str, Any] = {}
    for name, value in found.items():
        *outer, last = places.get(name, (name,))
        part = contents
        for key in outer:
            part = part.setdefault(key, {})
        part[last] = value
    return contents


def numbered(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an optimiser with numbers in place of names, as ``Optimizer.load_state_dict`` takes it."""
    groups = state["param_groups"]
    names = [name for group in groups for name in group["params"]]
    number = {name: place for place, name in enumerate(names)}
    return {
        "state": {number[name]: values for name, values in state.get("state", {}).items()},
        "param_groups": [group | {"params": [number[name] for name in group["params"]]} for group in groups],
    }
