"""Labelled images in tar shards, for training."""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from vit.data.identical import Duplicates, Identical, find_identical
from vit.data.labelled_files import LabelledFiles, LabelledPaths
from vit.data.module import Stage
from vit.data.shard_files import Members, digest_of, expand, kept_index, read_index, text_of
from vit.support.class_names import match_classes
from vit.support.files import cache_folder, replacing
from vit.support.first_process import print_once
from vit.support.printable import list_names, printable
from vit.support.progress import progress

MANIFEST = "manifest.json"
PIPE = "pipe:"
LEAVE_OUT = "or leave the shard out by --data.skip_damaged true"


class Shards(LabelledFiles):
    """Images in tar shards, in the layout of webdataset: ``0012.jpg`` beside ``0012.cls`` or ``0012.json``.

    ``vit-attention shards FOLDER OUT`` writes them, with an index and a manifest. Other shards are indexed at the first
    start, from the headers of their files. In each epoch, each image is read once, by one of the processes, in a new
    random order of all images.

    Args:
        urls: The shards for training, such as ``train-{000000..000127}.tar``: files, also as ``file:PATH``, or the
            output of a command, as ``pipe:COMMAND``, which is copied to ``~/.cache/vit/shards`` first.
        val_urls: The shards for validation; None holds images out of those for training.
        test_urls: The shards for test; None holds images out if there are no ``val_urls`` either.
        class_names: Names of all classes, in the order of the logits; None takes those of the manifest, or of the
            shards, or in a test those of the trained model.
        memory_limit: As for every data module; 0 streams the images, and decodes none before the training.
        kwargs: Size, batches and augmentation, as for ImageFolder.

    Raises:
        ValueError: If a shard is missing, damaged or empty, differs from its manifest, or has an image without a class.
    """

    remedies = {"val": "name them by --data.val_urls", "test": "name them by --data.test_urls"}

    def __init__(
        self,
        urls: str,
        val_urls: str | None = None,
        test_urls: str | None = None,
        *,
        class_names: list[str] | None = None,
        memory_limit: float = 0.0,
        **kwargs: Any,
    ) -> None:
        patterns: dict[Stage, str | None] = {"train": urls, "val": val_urls, "test": test_urls}
        self.shards = {stage: _find(pattern) for stage, pattern in patterns.items() if pattern is not None}
        _check_each_once([shard for shards in self.shards.values() for shard in shards])
        self.known_classes = class_names
        super().__init__(root=str(self.shards["train"][0].parent), memory_limit=memory_limit, **kwargs)
        self.decodes_on_demand = memory_limit == 0

    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the images and labels of each split."""
        folders = dict.fromkeys(shard.parent for shards in self.shards.values() for shard in shards)
        self.manifests = {folder: read_manifest(folder) for folder in folders}
        splits = {stage: self._read(shards) for stage, shards in self.shards.items()}
        noted = {stage: np.unique(members.index["class"], return_inverse=True) for stage, members in splits.items()}
        found = sorted({text for texts, _ in noted.values() for text in texts.tolist()})
        self.without_classes = self._why_without_classes(found)
        if self.without_classes is not None:
            self.class_names = []
            return {stage: (members, np.zeros(len(members), dtype=np.int64)) for stage, members in splits.items()}
        for members in splits.values():
            if not (has_class := members.index["class"] != b"").all():
                lacking = members[~has_class]
                raise ValueError(
                    f"{lacking[0]} has no class, as {len(lacking):,} of {len(members):,} images: add a file .cls "
                    "beside it, or .json with 'cls'"
                )
        names = self._name(found)
        numbers = {text: self.class_names.index(name) for text, name in names.items()}
        return {
            stage: (splits[stage], np.array([numbers[text] for text in texts.tolist()], dtype=np.int64)[inverse])
            for stage, (texts, inverse) in noted.items()
        }

    def _look_for_identical(self, duplicates: Duplicates) -> None:
        """Name, refuse or drop identical images. Shards without digests are read whole for it, unless it is "warn"."""
        unknown = sum(int((members.index["digest"] == 0).sum()) for members, _ in self.splits.values())
        if duplicates != "warn":
            for members, _ in self.splits.values():
                for row in progress((members.index["digest"] == 0).nonzero()[0].tolist(), "images compared"):
                    members.index["digest"][row] = digest_of(members[row].open("rb").read())
        super()._look_for_identical(duplicates)
        if unknown and duplicates == "warn":
            self.identical.append(
                f"{unknown:,} images are not compared, as their shards have no digests: --data.duplicates drop reads "
                "them, and leaves copies out"
            )

    def find_identical(self) -> Identical:
        """Return the groups of images with the same bytes, by the digests in the indices."""
        digests = np.concatenate([members.index["digest"] for members, _ in self.splits.values()])
        several, counts = np.unique(digests[digests > 0], return_counts=True)
        several = several[counts > 1]
        alike = {}
        for stage, (members, labels) in self.splits.items():
            rows = np.isin(members.index["digest"], several)
            alike[stage] = members[rows], labels[rows].tolist()

        def same(images: Sequence[Path]) -> list[list[int]]:
            groups: dict[int, list[int]] = {}
            for index, image in enumerate(images):
                groups.setdefault(image.digest, []).append(index)
            return sorted(groups.values())

        return find_identical(alike, same)

    def _read(self, shards: list[Path]) -> Members:
        """Return the images of shards; damaged shards are left out if ``skip_damaged``, else they are a ValueError."""
        _scan_all([shard for shard in shards if kept_index(shard) is None], self.num_workers)
        indices = []
        for shard in shards:
            try:
                indices.append(_checked_index(shard, self.manifests[shard.parent]))
            except DamagedError as error:
                if not self.skip_damaged:
                    raise ValueError(f"{error}, {LEAVE_OUT}") from None
                indices.append(None)
                self.not_read.setdefault("damaged shards", []).append(shard)
        whole = [number for number, index in enumerate(indices) if index is not None]
        if not whole:
            raise ValueError(f"all shards are damaged, such as {shards[0]}: copy them again")
        numbers = np.concatenate([np.full(len(indices[number]), number, dtype=np.int32) for number in whole])
        return Members(shards, numbers, np.concatenate([indices[number] for number in whole]))

    def _why_without_classes(self, found: list[bytes]) -> str | None:
        """Return why a classifier cannot learn from the images; None if it can."""
        if found == [b""]:
            lack = "no image has a class: a classifier needs a file .cls beside each, or .json with 'cls'"
            why = f"{self.root}: {lack}; without labels, --model MaskedAutoencoder learns from it"
        elif len(found) == 1 and not self._classes_of_manifest():
            why = f"the images of {self.root} are of one class ({printable(text_of(found[0]))}): add another class"
        else:
            return None
        if self.known_classes is None:
            return why
        if found == [b""]:
            raise ValueError(why)
        return None

    def _name(self, found: list[bytes]) -> dict[bytes, str]:
        """Return the name of each class that images have, given as a name or a number, and set ``class_names``."""
        classes = self._classes_of_manifest()
        texts = [text.decode(errors="backslashreplace") for text in found]
        if all(text.isdecimal() for text in texts):
            table, names = self._name_numbers(texts, classes)
        else:
            table, names = classes or sorted(map(printable, texts)), [*map(printable, texts)]
            if unknown := sorted(set(names) - set(table)):
                raise ValueError(
                    f"{self.root} has images of {list_names(unknown, 3)}, and {MANIFEST} names {list_names(table, 3)}: "
                    "write the shards again"
                )
        known = self.known_classes
        self.class_names = list(table) if known is None else match_classes(names, known, self.root)
        return dict(zip(found, names, strict=True))

    def _name_numbers(self, texts: list[str], classes: list[str]) -> tuple[list[str], list[str]]:
        """Return the names of all classes (of the manifest, else of the model, else numbers), and that of each text."""
        largest, count = max(map(int, texts)), len({*map(int, texts)})
        table = classes or self.known_classes
        if not table and largest >= count:
            raise ValueError(
                f"{self.root} has {count:,} classes, numbered up to {largest}: number them from 0 to {count - 1}, or "
                "name all of them by --data.class_names"
            )
        table = table or [str(number) for number in range(count)]
        are_names = not classes and {*texts} <= {*table}
        if largest >= len(table) and are_names:
            return table, texts
        if largest >= len(table):
            raise ValueError(
                f"{self.root} has images of class {largest}, and {len(table)} classes from 0 on "
                f"({list_names(table, 3)}): name all of them by --data.class_names, or write the shards again"
            )
        names = [table[int(text)] for text in texts]
        differing = [(text, name) for text, name in zip(texts, names, strict=True) if text != name]
        if differing and are_names:
            text, name = differing[0]
            raise ValueError(
                f"{self.root} has images of class {text}, which is a name among those of the model and the place "
                f"of {name}, counted from 0: write the shards by vit-attention shards, whose manifest names them"
            )
        return table, names

    def _classes_of_manifest(self) -> list[str]:
        """Return the classes that the manifests name, which must be the same; [] without a manifest."""
        lists = {folder: manifest["classes"] for folder, manifest in self.manifests.items() if manifest is not None}
        for folder, classes in lists.items():
            if classes != (first := next(iter(lists.values()))):
                raise ValueError(
                    f"classes differ between {next(iter(lists))} ({list_names(first, 3)}) and {folder} "
                    f"({list_names(classes, 3)}): write the shards of all splits together"
                )
        return next(iter(lists.values()), [])


def check_no_command(arguments: Mapping[str, Any], place: object) -> None:
    """Check that arguments from a file, which may come from a stranger, run no command.

    Raises:
        ValueError: If one of them is a command.
    """
    for name in ("urls", "val_urls", "test_urls"):
        pattern = arguments.get(name)
        # Also {pipe:a,b}; other data may mean something else by the name.
        is_command = isinstance(pattern, str) and PIPE in pattern
        if is_command and any(url.startswith(PIPE) for url in expand(pattern)):
            raise ValueError(f"{place} names its shards by a command: type it by --data.{name}, if you trust it")


class DamagedError(ValueError):
    """A shard whose bytes are not those that were written."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder of shards; None if it has none.

    Raises:
        ValueError: If it cannot be read, or the shards are not all written yet.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        shards, classes = manifest["shards"], manifest["classes"]
        _ = [(entry["images"], entry["bytes"]) for entry in (shards or {}).values()], [*classes]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"cannot read {path} ({error}): write the shards again, or delete it") from None
    if shards is None:
        raise ValueError(f"the shards of {folder} are not all written: run the same vit-attention shards again")
    return manifest


def _checked_index(shard: Path, manifest: dict[str, Any] | None) -> np.ndarray:
    """Return the index of a shard, checked against its manifest if there is one.

    Raises:
        DamagedError: If the shard is damaged.
        ValueError: If the shard is empty, or is not the one that the manifest describes.
    """
    entry = None if manifest is None else manifest["shards"].get(shard.name)
    if manifest is not None and entry is None:
        raise ValueError(f"{shard.parent / MANIFEST} names no {shard.name}: write the shards again, or delete it")
    if entry is not None and (size := shard.stat().st_size) != entry["bytes"]:
        raise DamagedError(f"{shard} has {size:,} bytes, and {MANIFEST} says {entry['bytes']:,}: copy it again")
    try:
        index = read_index(shard)
    except ValueError as error:
        raise DamagedError(str(error)) from None
    if len(index) == 0:
        raise ValueError(f"the shard {shard} has no images: name the others, or write it again")
    if entry is not None and len(index) != entry["images"]:
        raise ValueError(
            f"{shard} has {len(index):,} images, and {MANIFEST} says {entry['images']:,}: write the shards again"
        )
    return index


def _scan_all(shards: list[Path], workers: int) -> None:
    """Index shards in several processes; the indices are kept."""
    if min(workers, len(shards)) > 1:
        with ProcessPoolExecutor(min(workers, len(shards))) as pool:
            for _ in progress(pool.map(_try_index, shards), "shards indexed", len(shards)):
                pass


def _try_index(shard: Path) -> None:
    with suppress(ValueError):  # it is raised again when the index is needed
        read_index(shard)


def _find(pattern: str) -> list[Path]:
    """Return the files that a pattern names; the output of a command is copied to one."""
    if not pattern:  # a variable of a shell may be empty
        raise ValueError("'' names no shard: name files as train-{000000..000127}.tar")
    shards = [_fetch(url) if url.startswith(PIPE) else _local(url) for url in expand(pattern)]
    if missing := [shard for shard in shards if not shard.is_file()]:
        among = f", as {len(missing):,} of {len(shards):,} that {pattern!r} names" if len(shards) > 1 else ""
        raise ValueError(f"no shard {missing[0]}{among}: name files as train-{{000000..000127}}.tar")
    return shards


def _check_each_once(shards: list[Path]) -> None:
    """Check that no shard is named twice, also by another spelling or a link."""
    spelt: dict[Path, Path] = {}
    for shard in shards:
        if (before := spelt.setdefault(shard.resolve(), shard)) is not shard:
            also = "" if before == shard else f", also as {shard}"
            raise ValueError(
                f"{before} is named twice{also}: a shard belongs to one split, and its images are seen once"
            )


def _local(url: str) -> Path:
    if re.match(r"[a-z0-9]+://", url.removeprefix("file:")):
        raise ValueError(
            f"{url} is on no disk: copy it, or name a command, as 'pipe:curl -sfL URL' or 'pipe:aws s3 cp URL -'"
        )
    return Path(re.sub("^file:(//)?", "", url))


def _fetch(url: str) -> Path:
    """Return the output of a command as a file, copied once because a stream cannot be read in any order."""
    path = cache_folder() / "shards" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            print_once(f"{url}: its copy {path} is read; delete that to run the command again")
            return path
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            done = subprocess.run(url.removeprefix(PIPE), shell=True, stdout=file, stderr=subprocess.PIPE, check=False)
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                said = "".join(f" ({line})" for line in last)
                raise ValueError(f"{url} ended with status {done.returncode}{said}: check the command")
    return path
