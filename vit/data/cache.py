"""A set of image files, decoded once into a uint8 array and kept on disk for the next run."""

import hashlib
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

import torch
from rich.progress import track
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.files import ImageFiles, collate_readable

DECODE_BATCH = 256
# Part of each name: raise it when images are decoded to other pixels than before.
DECODER = 1
UNUSED_DAYS = 30


def cache_folder() -> Path:
    """Where decoded sets are kept: ``$XDG_CACHE_HOME/vit``, or ``~/.cache/vit``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"


def load_decoded(files: ImageFiles, num_workers: int) -> Tensor:
    """All images of a set, uint8 (N, C, H, W), in the order of the files; decoded on the first call only.

    The cached array is found by the name, size and time of change of every file and by the image size, so that
    a changed set is decoded anew; it carries a checksum, so that a damaged one is too. An array that no run has read
    for 30 days is deleted when another is written.

    Raises:
        ValueError: If an image cannot be read; the message names its file.
    """
    path = cache_folder() / f"{fingerprint(files)}.safetensors"
    images = _read(path)
    if images is None:
        images = _decode_all(files, num_workers)
        _write(path, images)
    return images


def fingerprint(files: ImageFiles) -> str:
    """A name for the decoded set that changes with any of its files."""
    digest = hashlib.sha256(repr((DECODER, files.image_size, files.in_channels)).encode())
    for path in files.paths:
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _decode_all(files: ImageFiles, num_workers: int) -> Tensor:
    images = torch.empty(len(files), files.in_channels, *files.image_size, dtype=torch.uint8)
    loader = DataLoader(
        files,
        batch_size=DECODE_BATCH,
        num_workers=num_workers,
        collate_fn=collate_readable,
        generator=torch.Generator(),  # of its own, or a first run would draw other numbers than a cached one
    )
    for decoded in track(loader, description=f"Decoding {len(files):,} images"):
        decoded.raise_unreadable()
        images[decoded.indices] = decoded.images
    return images


def _checksum(images: Tensor) -> str:
    return str(zlib.crc32(images.numpy()))


def _read(path: Path) -> Tensor | None:
    try:
        with safe_open(path, framework="pt") as file:
            images, checksum = file.get_tensor("images"), (file.metadata() or {}).get("crc32")
    except (FileNotFoundError, SafetensorError, OSError):
        return None
    if _checksum(images) != checksum:
        return None
    with suppress(OSError):
        path.touch()  # it was used today
    return images


def _delete_unused(folder: Path) -> None:
    """Arrays that nobody has read for long, and halves of arrays that were never finished."""
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.tmp")]:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_DAYS * 24 * 3600:
                path.unlink()


def _write(path: Path, images: Tensor) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"images": images}, unfinished, metadata={"crc32": _checksum(images)})
        unfinished.replace(path)
        _delete_unused(path.parent)
    except (OSError, SafetensorError) as error:
        # The run can go on without the cache; only the next one will have to decode again.
        print(f"could not keep the decoded images in {path.parent}: {error}")
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
