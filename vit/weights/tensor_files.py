"""Reads and writes files of tensors; refuses files that carry code, and damaged ones."""

import argparse
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.support.files import replacing

# Weights hardly shrink when they are packed. A file that unpacks to more than this may be meant to fill the memory.
MOST_TIMES, SMALL = 20, 2**26  # times its own size, and bytes that are always taken

LIST = ".metadata"  # of the tensors in the folder of a distributed checkpoint
SUFFIXES = (".safetensors", ".npz", ".bin", ".pth", ".pt", ".ckpt", ".tar")


def is_distributed(path: Path) -> bool:
    """Return whether a path is the folder of a distributed checkpoint, to which each process wrote its part."""
    return (path / LIST).is_file()


def read_file(path: Path) -> tuple[Any, dict[str, str]]:
    """Return the contents of a file of any kind or a distributed checkpoint, and the metadata of a safetensors file.

    Raises:
        ValueError: If the file does not exist, is of another kind, is damaged, or carries pickled code.
    """
    if is_distributed(path):
        from vit.weights.distributed import read_distributed  # imported here, as it needs more of torch

        return read_distributed(path), {}
    if not path.is_file():
        if path.suffix == ".ckpt":
            raise ValueError(f"no checkpoint at {path}: runs keep theirs in runs/EXPERIMENT/VERSION/checkpoints/")
        raise ValueError(f"no file at {path}: vit.save writes files, and weights of other libraries are downloaded")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends in {path.suffix!r}, and weights end in one of {', '.join(SUFFIXES)}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    _check_unpacked_size(path)
    return (_read_npz if path.suffix == ".npz" else _read_pickled)(path), {}


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file: strings by name."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()  # the file is no dictionary
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged ({error}): take another copy") from None


def write_safetensors(state: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write tensors to a safetensors file, which appears as a whole or not at all."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    with replacing(path) as unfinished:
        # save_file makes files that only their owner may read.
        unfinished.write_bytes(save(tensors, metadata))


def _check_unpacked_size(path: Path) -> None:
    """Check the sizes that a zip archive states, before anything is unpacked; zipfile unpacks no more than those."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    except Exception:  # zipfile can raise any error on damaged bytes, and what reads the file says which
        return
    packed = path.stat().st_size
    if unpacked > max(SMALL, MOST_TIMES * packed):
        raise ValueError(
            f"{path} has {packed:,} bytes and unpacks to {unpacked:,}, as no file of weights does: nothing was read"
        )


def _read_npz(path: Path) -> dict[str, Tensor]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # numpy and zipfile can raise any error on damaged bytes
        raise ValueError(
            f"{path} is no .npz file of plain numbers, or is damaged ({error}): take another copy"
        ) from None
    state = {}
    for name, array in arrays.items():
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # bfloat16, which numpy lacks
            state[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        elif array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            state[name] = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
        else:
            raise ValueError(f"{path} is not of weights: {name} holds {array.dtype}, and numbers are expected")
    return state


def _read_pickled(path: Path) -> Any:
    """Return the contents of a file of ``torch.save``, on the CPU, without executing code in the file."""
    _check_archive(path)
    try:
        # Files of timm and DINO keep the options of their training.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler can raise any error on arbitrary bytes
        if re.search("unsupported (global|class)", str(error), re.IGNORECASE):
            raise ValueError(
                f"{path} is refused: it carries pickled code, which could do anything when loaded; none of it was "
                "executed. Ask its author for plain tensors (a state_dict)"
            ) from None
        raise ValueError(f"{path} is not a checkpoint, or is damaged: it cannot be read as one") from None


def _check_archive(path: Path) -> None:
    """Check that a zip archive is no TorchScript, and compare each part with its checksum, which torch does not read.

    OpenAI's files of CLIP are TorchScript.
    """
    program, damaged = False, None
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            program = any(name.endswith("/constants.pkl") for name in archive.namelist())
            # The checksums do not cover the attributes, and torch reads no data of an entry marked as a directory.
            marked = (part.filename for part in archive.infolist() if part.external_attr)
            damaged = None if program else archive.testzip() or next(marked, None)
    except Exception as error:  # zipfile can raise any error on damaged bytes
        raise ValueError(f"{path} is damaged ({error}): take another checkpoint, or a copy of it") from None
    if program:
        raise ValueError(
            f"{path} is a TorchScript program: save the tensors of torch.jit.load(path).state_dict(), if you trust it"
        )
    if damaged is not None:
        raise ValueError(
            f"{path} is damaged ({damaged} is not what was written): take another checkpoint, or a copy of it"
        )


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor has memory for each of its numbers, and is not a view that repeats some."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
