"""Identical images: files with the same bytes, across splits, across classes, or under two names."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from vit.data.split import Stage
from vit.support.files import cache_folder, replacing

Duplicates = Literal["warn", "error", "drop"]
READ_QUICKLY = 1000  # number of files that are read in less than a tenth of a second
KEPT_FIRST: tuple[Stage, ...] = ("test", "val", "train")  # which of the copies in several splits is kept


class Place(NamedTuple):
    """A file, and where it is used."""

    path: Path
    stage: Stage
    label: Hashable


@dataclass
class Identical:
    """Groups of files with the same bytes.

    Args:
        across_classes: Groups with several labels, of which at most one is right.
        across_splits: Groups of one label in several splits: scores of images that a model was trained on are too good.
        others: Groups of one label and one split.
    """

    across_classes: list[list[Place]]
    across_splits: list[list[Place]]
    others: list[list[Place]]

    @property
    def dropped(self) -> set[tuple[Stage, Path]]:
        """The files to leave out, so that each image is there once and its label is not contradicted.

        All files of a group with several labels are left out. Of each other group one file is kept: that of the test
        images, else that of the validation images. So a test stays as it is, and no training sees its images.
        """
        gone = [place for group in self.across_classes for place in group]
        for group in (*self.across_splits, *self.others):
            gone += sorted(group, key=lambda place: KEPT_FIRST.index(place.stage))[1:]
        return {(place.stage, place.path) for place in gone}


def find_identical(
    splits: Mapping[Stage, tuple[Sequence[Path], Sequence]],
    same: Callable[[Sequence[Path]], list[list[int]]] | None = None,
) -> Identical:
    """Return the groups of identical files of a data set.

    A picture that was saved again, in another format or with other EXIF data, counts as a different file.

    Args:
        splits: The files and labels by split.
        same: Returns the indices of each group of files with the same bytes; None for ``same_bytes``.
    """
    places = [
        Place(path, stage, tuple(label) if isinstance(label, list) else label)
        for stage in get_args(Stage)
        if stage in splits
        for path, label in zip(*splits[stage], strict=True)
    ]
    found = Identical([], [], [])
    for indices in (same or same_bytes)([place.path for place in places]):
        group = [places[index] for index in indices]
        if len({place.label for place in group}) > 1:
            found.across_classes.append(group)
        else:
            (found.across_splits if len({place.stage for place in group}) > 1 else found.others).append(group)
    return found


def same_bytes(paths: Sequence[Path]) -> list[list[int]]:
    """Return the indices of each group of files with the same bytes, in their order.

    Files of a unique size are not read. Empty files, and files that cannot be read, are left to the decoder. For many
    files, the result is kept in the cache, by the name, size and times of every file.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    key = hashlib.sha256()
    for index, path in enumerate(paths):
        with suppress(OSError):
            status = path.stat()
            by_size[status.st_size].append(index)
            key.update(
                os.fsencode(f"{path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\n")
            )
    by_size.pop(0, None)
    alike = [indices for indices in by_size.values() if len(indices) > 1]
    if sum(map(len, alike)) <= READ_QUICKLY:
        return _read_all(paths, alike)
    kept = cache_folder() / f"{key.hexdigest()[:32]}.identical.json"
    with suppress(OSError, ValueError):
        groups = json.loads(kept.read_text(encoding="utf-8"))
        kept.touch()  # files that no run reads for 30 days are deleted
        return groups
    groups = _read_all(paths, alike)
    with suppress(OSError), replacing(kept) as unfinished:  # if this fails, the next run reads all files again
        unfinished.write_text(json.dumps(groups), encoding="utf-8")
    return groups


def _read_all(paths: Sequence[Path], alike: Iterable[Iterable[int]]) -> list[list[int]]:
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for index in chain.from_iterable(alike):
        with suppress(OSError), paths[index].open("rb", buffering=0) as file:
            by_content[hashlib.sha256(file.read()).digest()].append(index)
    return sorted(group for group in by_content.values() if len(group) > 1)
