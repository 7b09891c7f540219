"""A cache of decoded image files: one uint8 array per data set, kept on disk for the next run.

The cache also keeps the messages about unreadable files and the notes on others. If a data set is too large for an
array, it keeps only these.
"""

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.image_files import DecodedBatch, ImageFiles, collate_readable, name_unreadable, raise_unreadable
from vit.support.files import cache_folder, replacing, sweep
from vit.support.first_process import print_once
from vit.support.progress import progress

DECODE_BATCH = 256
# Part of the fingerprint: raise it when decoding gives other pixels than before.
DECODER_VERSION = 5
UNUSED_DAYS = 30
UNUSED_KINDS = (".safetensors", ".json", ".npy", ".unfinished", ".tmp")  # earlier versions wrote .tmp and more .json
# By the index of the file.
Messages = dict[int, str]
Notes = dict[int, list[str]]


def load_decoded(files: ImageFiles, num_workers: int, *, skip_damaged: bool = False) -> tuple[Tensor, ImageFiles]:
    """Return the images, uint8 (N, C, H, W), and the file of each, in their order; only the first call decodes them.

    Messages about the files are in ``unreadable`` and ``notes``, both of ``files`` and of the returned files.

    The key of the cached array is the image size, and the name, size and times of last change of every file, so a
    changed data set is decoded again. So is one whose array fails its checksum. Writing an array deletes those that no
    run has read for 30 days.

    Args:
        files: The image files.
        num_workers: Processes that decode.
        skip_damaged: Whether files that cannot be read are left out and named, instead of raising an error.

    Raises:
        ValueError: If images cannot be read and are not skipped; the message names their files.
    """
    return _load(files, num_workers, skip_damaged, keep_images=True)


def readable_files(files: ImageFiles, num_workers: int, *, skip_damaged: bool = False) -> ImageFiles:
    """Return the files that can be read, found by decoding each once; only the first call decodes them.

    Arguments and errors are those of ``load_decoded``.
    """
    return _load(files, num_workers, skip_damaged, keep_images=False)[1]


def _load(files: ImageFiles, num_workers: int, skip_damaged: bool, *, keep_images: bool) -> tuple[Tensor, ImageFiles]:
    path = cache_folder() / f"{fingerprint(files)}{'' if keep_images else '.checked'}.safetensors"
    images, unreadable, notes = _read(path)
    if images is None or (unreadable and not (skip_damaged and _still_unreadable(files, unreadable))):
        images, unreadable, notes = _decode_all(files, num_workers, keep_images)
        if not skip_damaged:
            raise_unreadable(unreadable)
        _write(path, images, unreadable, notes)
    files.unreadable.update((files.paths[index], message) for index, message in unreadable.items())
    files.notes.update((files.paths[index], found) for index, found in notes.items())
    if not unreadable:
        return images, files
    said = f"left out {len(unreadable):,} of {len(files):,} files:"
    print_once("\n  ".join([said, *name_unreadable(unreadable)]))
    return images, files.without(unreadable)


def _still_unreadable(files: ImageFiles, unreadable: Messages) -> bool:
    """Return whether files that could not be read once still cannot: the disk, or a missing decoder, may be back."""
    return len(files.decode(torch.tensor([*unreadable])).unreadable) == len(unreadable)


def fingerprint(files: ImageFiles) -> str:
    """Return the name of the cached array, which changes with any of the files."""
    settings = (DECODER_VERSION, files.image_size, files.in_channels, files.stretch, files.max_pixels)
    digest = hashlib.sha256(repr(settings).encode())
    resolve = cache(Path.resolve)  # for folders only: resolving every file takes longer than all else
    for path in files.paths:
        status = path.stat()
        digest.update(os.fsencode(f"{resolve(path.parent) / path.name}\0{status.st_size}\0{status.st_mtime_ns}"))
        digest.update(f"\0{status.st_ctime_ns}\n".encode())  # tools that edit a file may restore its other time
    return digest.hexdigest()[:32]


def _decode_all(files: ImageFiles, num_workers: int, keep_images: bool) -> tuple[Tensor, Messages, Notes]:
    images = torch.empty(len(files) if keep_images else 0, files.in_channels, *files.image_size, dtype=torch.uint8)
    unreadable: Messages = {}
    notes: Notes = {}
    for decoded in _decoded(files, num_workers, "decoded" if keep_images else "checked"):
        unreadable |= decoded.unreadable
        notes |= decoded.notes
        if keep_images and decoded.indices:
            images[decoded.indices] = decoded.images
    if keep_images and unreadable:
        images = images[[index for index in range(len(files)) if index not in unreadable]]
    return images, unreadable, notes


def _decoded(files: ImageFiles, num_workers: int, done: str) -> Iterator[DecodedBatch]:
    loader = DataLoader(
        files,
        batch_size=DECODE_BATCH,
        num_workers=num_workers,
        collate_fn=collate_readable,
        generator=torch.Generator(),  # else DataLoader draws from the global generator, in the first run only
    )
    return progress(loader, f"batches of {DECODE_BATCH} images {done}")


def _checksum(images: Tensor, found: str) -> int:
    return zlib.crc32(found.encode(), zlib.crc32(images.numpy()))


def _read(path: Path) -> tuple[Tensor | None, Messages, Notes]:
    try:
        with safe_open(path, framework="pt") as file:
            images, metadata = file.get_tensor("images"), file.metadata() or {}
        checksum, found = json.loads(metadata["decoded"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None, {}, {}
    if _checksum(images, found) != checksum:
        return None, {}, {}
    with suppress(OSError):
        path.touch()  # for _delete_unused
    unreadable, notes = ({int(index): said for index, said in part.items()} for part in json.loads(found))
    return images, unreadable, notes


def _write(path: Path, images: Tensor, unreadable: Messages, notes: Notes) -> None:
    """Write a file of the cache. If that fails, the run continues, and the next one decodes again."""
    text = json.dumps([unreadable, notes])
    # A single entry: the order of several would differ from file to file.
    metadata = {"decoded": json.dumps([_checksum(images, text), text])}
    try:
        with replacing(path) as unfinished:
            save_file({"images": images}, unfinished, metadata=metadata)
        sweep(path.parent)
        _delete_unused(path.parent)
    except (OSError, SafetensorError) as error:
        print(f"could not keep the decoded images in {path.parent}: {getattr(error, 'reason', error)}")


def _delete_unused(folder: Path) -> None:
    """Delete what no run has read for 30 days, and unfinished files of that age."""
    for path in folder.iterdir():
        with suppress(OSError):
            unused = time.time() - path.stat().st_mtime > UNUSED_DAYS * 24 * 3600
            if unused and path.suffix in UNUSED_KINDS:
                path.unlink()
