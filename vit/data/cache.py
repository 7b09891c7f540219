"""A cache of decoded image files: one uint8 array per data set, kept on disk for the next run."""

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

from vit.atomic import replacing
from vit.data.files import ImageFiles, collate_readable

DECODE_BATCH = 256
# Part of the fingerprint: raise it when decoding gives other pixels than before.
DECODER_VERSION = 1
UNUSED_DAYS = 30


def cache_folder() -> Path:
    """Return the folder of the cache: ``$XDG_CACHE_HOME/vit``, or ``~/.cache/vit``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"


def load_decoded(files: ImageFiles, num_workers: int) -> Tensor:
    """Return all images, uint8 (N, C, H, W), in the order of the files; only the first call decodes them.

    The cached array is found by the name, size and modification time of every file and by the image size: a changed
    data set is decoded again. So is a damaged array, found by its checksum. Writing an array deletes those that no run
    has read for 30 days.

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
    """Return the name of the cached array, which changes with any of the files."""
    digest = hashlib.sha256(repr((DECODER_VERSION, files.image_size, files.in_channels)).encode())
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
        generator=torch.Generator(),  # or DataLoader would draw from the global generator, in the first run only
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
    except (SafetensorError, OSError):
        return None
    if _checksum(images) != checksum:
        return None
    with suppress(OSError):
        path.touch()  # for _delete_unused
    return images


def _write(path: Path, images: Tensor) -> None:
    try:
        with replacing(path) as unfinished:
            save_file({"images": images}, unfinished, metadata={"crc32": _checksum(images)})
        _delete_unused(path.parent)
    except (OSError, SafetensorError) as error:
        # The run continues without the cache; the next one decodes again.
        print(f"could not keep the decoded images in {path.parent}: {error}")


def _delete_unused(folder: Path) -> None:
    """Delete arrays that no run has read for 30 days, and unfinished files of that age."""
    for path in folder.iterdir():
        with suppress(OSError):
            unused = time.time() - path.stat().st_mtime > UNUSED_DAYS * 24 * 3600
            if unused and path.suffix in (".safetensors", ".unfinished", ".tmp"):  # .tmp: of earlier versions
                path.unlink()
