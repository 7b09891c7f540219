"""The command ``vit-attention shards``: a folder of images as tar shards."""

import argparse
import hashlib
import json
import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from vit.commands.parser import Parser, add_max_pixels, add_skip_damaged, run
from vit.runs.command_prefix import command_prefix
from vit.support.checks import check_natural, check_positive_int
from vit.support.files import replacing, sweep
from vit.support.progress import progress

if TYPE_CHECKING:
    from vit.data.folder import ImageFolder

PER_SHARD = 10_000
ORDER_SEED = 0
CHECKED_SIZE = (32, 32)  # images are decoded to this size: JPEGs at an eighth of theirs, which takes less time


class Job(NamedTuple):
    """A shard to write.

    Attributes:
        shard: Its path.
        files: Name in the shard, path and class number of each image; None without classes.
        max_pixels: Most pixels of an image.
        skip_damaged: Whether the shard is written without the images that cannot be read.
    """

    shard: Path
    files: list[tuple[str, Path, int | None]]
    max_pixels: int
    skip_damaged: bool


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention shards``: write a folder of images as tar shards."""
    parser = Parser(
        prog="vit-attention shards",
        description="Write the images of a folder as tar shards, to train on by --data Shards: train-000000.tar and so "
        "on, val- and test- too if the folder names these splits, an index beside each, and manifest.json. Images are "
        "in random order, and each is decoded once. The same command goes on where it was stopped.",
        epilog="Example: vit-attention shards photos photo_shards",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", type=Path, help="folder of class folders, or of train/, val/ and test/")
    add("output", type=Path, help="folder to write to")
    add("--per_shard", type=int, default=PER_SHARD, metavar="N", help=f"images of a shard (default: {PER_SHARD:,})")
    add("--workers", type=int, metavar="N", help="processes that write (default: one for each core)")
    add_skip_damaged(parser)
    add_max_pixels(parser)
    run(parser, arguments, _shards)


def _shards(options: argparse.Namespace) -> None:
    check_positive_int("--per_shard", options.per_shard, f"{PER_SHARD} is usual")
    if options.workers is not None:
        check_natural("--workers", options.workers, "0 writes in this process")
    if not options.folder.is_dir():
        raise ValueError(f"no folder {options.folder}: name the folder of the images")
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(options.output / ".shards.lock").acquire(timeout=0):
            _write(options)
    except Timeout:
        raise ValueError(f"another process writes shards to {options.output}: wait for it") from None


def _write(options: argparse.Namespace) -> None:
    import numpy as np

    from vit.data import ImageFolder  # imports torchvision, which --help does not need
    from vit.data.formats import MAX_PIXELS
    from vit.data.image_files import name_unreadable, raise_unreadable
    from vit.data.inventory import Inventory, first_names
    from vit.data.shards import MANIFEST

    max_pixels = options.max_pixels or MAX_PIXELS
    data = ImageFolder(str(options.folder), max_pixels=max_pixels)
    jobs = _jobs(data, options.output, options.per_shard, max_pixels, options.skip_damaged == "true")
    manifest = {"source": _fingerprint(jobs), "classes": data.class_names, "shards": None}
    _claim(options.output, manifest)
    counts = {stage: np.bincount(labels, minlength=len(data.class_names)) for stage, (_, labels) in data.splits.items()}
    print(Inventory(data.root, counts, data.class_names, data.not_read, identical=data.identical), flush=True)
    workers = (os.cpu_count() or 1) if options.workers is None else options.workers
    entries, unreadable, noted = {}, [], defaultdict(list)
    for job, (entry, messages, notes) in zip(jobs, _run_all(jobs, min(workers, len(jobs))), strict=True):
        if entry is None:
            raise_unreadable(dict(enumerate(messages)))
        entries[job.shard.name] = entry
        unreadable += messages
        for path, note in notes:
            noted[note].append(path)
    manifest["shards"] = entries
    _save(options.output / MANIFEST, manifest)
    if unreadable:
        print(f"left out {len(unreadable):,} files:", *name_unreadable(dict(enumerate(unreadable))), sep="\n  ")
    for note, paths in noted.items():
        print(f"{note}: {len(paths):,} ({first_names(paths, data.root)})")
    images = sum(entry["images"] for entry in entries.values())
    print(f"{options.output}: {images:,} images of {len(data.class_names)} classes in {len(entries)} shards")
    print(f"train with: {command_prefix()} fit --data Shards {_arguments(data, options.output, jobs)}")


def _jobs(data: "ImageFolder", output: Path, per_shard: int, max_pixels: int, skip_damaged: bool) -> list[Job]:
    """Return the shards to write, with the images of each split in an order that depends on their number alone."""
    import numpy as np

    jobs = []
    for stage, (paths, labels) in data.splits.items():
        files = []
        for place, index in enumerate(np.random.default_rng(ORDER_SEED).permutation(len(paths)).tolist()):
            name = f"{place:08}_{paths[index].stem.replace('.', '_')}"  # in webdataset, the name ends at a dot
            files.append((name, paths[index], labels[index] if data.class_names else None))
        for number, first in enumerate(range(0, len(files), per_shard)):
            shard = output / f"{stage}-{number:06}.tar"
            jobs.append(Job(shard, files[first : first + per_shard], max_pixels, skip_damaged))
    return jobs


def _fingerprint(jobs: list[Job]) -> str:
    """Return a digest of the files of these shards, which changes if one of them changes."""
    digest = hashlib.sha256()
    for job in jobs:
        for key, path, label in job.files:
            status = path.stat()
            described = (job.shard.name, key, str(path.absolute()), label, status.st_size, status.st_mtime_ns)
            digest.update(os.fsencode(repr(described)))
    return digest.hexdigest()


def _claim(output: Path, manifest: dict[str, Any]) -> None:
    """Note which shards a folder is for; a ValueError if it has others."""
    from vit.data.shards import MANIFEST

    path = output / MANIFEST
    try:
        is_ours = json.loads(path.read_text(encoding="utf-8"))["source"] == manifest["source"]
    except FileNotFoundError:
        is_ours = not any(output.glob("*.tar"))
    except (ValueError, TypeError, KeyError):
        is_ours = False
    if not is_ours:
        raise ValueError(f"{output} has shards of other images or options: delete them, or name another folder")
    sweep(output)
    _save(path, manifest)


def _save(path: Path, manifest: dict[str, Any]) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _run_all(jobs: list[Job], workers: int) -> Any:
    """Yield what ``_write_checked`` returns for each shard."""
    if workers < 2:
        yield from progress(map(_write_checked, jobs), "shards", len(jobs))
        return
    with ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from progress(pool.map(_write_checked, jobs), "shards", len(jobs))


def _write_checked(job: Job) -> tuple[dict[str, Any] | None, list[str], list[tuple[Path, str]]]:
    """Write a shard, unless it is there; return its entry, messages about images that cannot be read, notes on others.

    The entry is None if such images are an error, or the shard has no others.
    """
    from vit.data.image_files import decode_and_note
    from vit.data.shard_files import describe_shard, write_shard

    entry = describe_shard(job.shard)
    if entry is not None and entry["images"] == len(job.files):
        return entry, [], []
    readable, messages, noted = [], [], []
    for file in job.files:
        try:
            _, notes = decode_and_note(file[1], CHECKED_SIZE, 3, max_pixels=job.max_pixels)
            readable.append(file)
            noted += [(file[1], note) for note in notes]
        except ValueError as error:
            messages.append(str(error))
    is_written = readable and (job.skip_damaged or not messages)
    return (write_shard(job.shard, readable) if is_written else None), messages, noted


def _arguments(data: "ImageFolder", output: Path, jobs: list[Job]) -> str:
    """Return the options that name the shards of each split."""
    words = []
    for stage in data.splits:
        names = [job.shard.name for job in jobs if job.shard.name.startswith(f"{stage}-")]
        several = f"{stage}-{{000000..{len(names) - 1:06}}}.tar"
        option = "--data.urls" if stage == "train" else f"--data.{stage}_urls"
        words.append(f'{option} "{output / (several if len(names) > 1 else names[0])}"')
    return " ".join(words)
