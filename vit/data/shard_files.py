"""Image files in tar shards, in the layout of webdataset: found by an index, read one by one, written whole.

A shard is an uncompressed tar. The files of an example follow each other in it and share a name up to the first dot:
``0012.jpg`` and ``0012.cls``, whose content is the class, or ``0012.json`` with ``{"cls": 3}``. The index of a shard
says where each image begins, so that images can be read in any order.
"""

import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np

from vit.data.formats import FORMAT_OF, why_not_read
from vit.support.files import cache_folder, replacing
from vit.support.printable import list_names, printable

INDEX_SUFFIX = ".index.npy"
COLUMNS = ("offset", "size", "digest", "crc32", "class", "name")  # of an index
INDEX_VERSION = 4  # of cached indices: raise it when a scan finds or refuses something else than before
CLASS_KEYS = ("cls", "label", "class")  # keys of a json file; the first that is there counts
LABELS = (".cls", ".json")
AS_JSON = '{"cls": 3}'
RANGE = re.compile(r"(\d+)\.\.(\d+)")
NO_TAR = "it is no whole, uncompressed tar; copy it again"
CHANGED = "its bytes are not those that were written: copy the shard again"


class Member(type(Path())):
    """An image file in a shard, as the path ``train-000000.tar/0012.jpg``.

    Attributes:
        shard: The tar.
        place: Where its bytes begin in the shard, and their number.
        digest: Digest of its bytes, 0 if it is unknown.
        crc32: Checksum of its bytes, -1 if it is unknown.
    """

    shard: Path
    place: tuple[int, int]
    digest: int
    crc32: int

    def open(self, *_: Any) -> BinaryIO:
        """Return its bytes as a file.

        Raises:
            ValueError: If they are not those that were written.
        """
        content = _read(self.shard, *self.place)
        # Every read is checked, so by a checksum: a digest would take ten times as long.
        if len(content) < self.place[1] or self.crc32 not in (-1, zlib.crc32(content)):
            raise ValueError(CHANGED)
        return io.BytesIO(content)

    @property
    def parent(self) -> Path:
        """The path of the shard, or of the folder in it."""
        return Path(str(super().parent))

    def stat(self, **_: Any) -> os.stat_result:
        """Return the status of the shard."""
        return self.shard.stat()

    def exists(self, **_: Any) -> bool:
        """Return True: it is in the index."""
        return True

    is_file = exists


class Members(Sequence[Path]):
    """Image files in shards, as arrays: worker processes share them, and a million images take a tenth of a gigabyte.

    Args:
        shards: The shards.
        numbers: Number of the shard of each image, (N,).
        index: The rows of their indices, (N,), as ``scan`` returns them.
    """

    def __init__(self, shards: list[Path], numbers: np.ndarray, index: np.ndarray) -> None:
        self.shards, self.numbers, self.index = shards, numbers, index

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> "Members": ...
    def __getitem__(self, index):
        """Return an image, or those of a slice or at the indices of an array."""
        if isinstance(index, slice | np.ndarray):
            return Members(self.shards, self.numbers[index], self.index[index])
        offset, size, digest, crc32, _, name = self.index[index].item()
        shard = self.shards[self.numbers[index]]
        member = Member(shard, text_of(name))
        member.shard, member.place, member.digest, member.crc32 = shard, (offset, size), digest, crc32
        return member

    @property
    def names(self) -> list[str]:
        """The path of each image."""
        shards, names = [*map(str, self.shards)], map(text_of, self.index["name"].tolist())
        return [f"{shards[number]}/{name}" for number, name in zip(self.numbers.tolist(), names, strict=True)]


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern stands for, with its braces expanded as in a shell.

    >>> expand("train-{0008..0010}.tar"), expand("{a,b}.tar")
    (['train-0008.tar', 'train-0009.tar', 'train-0010.tar'], ['a.tar', 'b.tar'])

    Raises:
        ValueError: If a brace is not closed, or holds neither a range that counts up nor a list.
    """
    before, brace, rest = pattern.partition("{")
    inside, closing, after = rest.partition("}")
    if (brace and not closing) or "{" in inside or "}" in before:
        raise ValueError(f"{pattern!r} has a brace that is not closed: write a range as train-{{000000..000127}}.tar")
    if not brace:
        return [pattern]
    if found := RANGE.fullmatch(inside):
        first, last = found.groups()
        if int(first) > int(last):
            raise ValueError(f"{pattern!r} counts down from {first} to {last}: write the smaller number first")
        parts = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    else:
        parts = inside.split(",")
    if len(parts) < 2 and not found:
        raise ValueError(f"{pattern!r} has {{{inside}}}, no range: write a range as train-{{000000..000127}}.tar")
    return [f"{before}{part}{end}" for part in parts for end in expand(after)]


def _read(shard: Path, offset: int, size: int) -> bytes:
    """Return bytes of a shard; a file object would take three times as long."""
    file = os.open(shard, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # which Windows alone has
    try:
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)
    finally:
        os.close(file)


def digest_of(content: bytes | np.ndarray) -> int:
    """Return a digest of 64 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) or 1


def text_of(name: bytes) -> str:
    """Return a name in an index as text."""
    return os.fsdecode(name)


def kept_index(shard: Path) -> np.ndarray | None:
    """Return the index beside a shard, or the one that an earlier run has cached; None if there is none.

    An index beside a shard that has changed since does not count: its classes may have been corrected.
    """
    size, beside = shard.stat().st_size, _beside(shard)
    is_older = beside.exists() and beside.stat().st_mtime_ns < shard.stat().st_mtime_ns
    for path in (_kept(shard),) if is_older else (beside, _kept(shard)):
        index = _load(path)
        if index is not None and (not len(index) or (index["offset"] + index["size"]).max() <= size):
            return index
    return None


def read_index(shard: Path) -> np.ndarray:
    """Return the index of a shard; if it has none, scan the shard and cache the index.

    Raises:
        ValueError: If the shard is damaged.
    """
    index = kept_index(shard)
    if index is None:
        index = _with_digests(scan(shard), _load(_beside(shard)))
        # If this fails, the next run scans again.
        with suppress(OSError), replacing(_kept(shard)) as unfinished, unfinished.open("wb") as file:
            np.save(file, index)
    return index


def _with_digests(index: np.ndarray, earlier: np.ndarray | None) -> np.ndarray:
    """Return an index with the digests that an earlier one has of the same images: a scan does not read them."""
    place, of_content = ["name", "offset", "size"], ["digest", "crc32"]
    if earlier is not None:
        known = dict(zip(earlier[place].tolist(), earlier[of_content].tolist(), strict=True))
        for row, key in enumerate(index[place].tolist()):
            if key in known:
                index["digest"][row], index["crc32"][row] = known[key]
    return index


def _load(path: Path) -> np.ndarray | None:
    """Return an index from a file; None if it cannot be read, or an earlier version wrote it."""
    with suppress(OSError, ValueError, EOFError):  # the last of a file without a byte, as a full disk leaves it
        index = np.load(path, allow_pickle=False)
        return index if index.dtype.names == COLUMNS else None
    return None


def _beside(shard: Path) -> Path:
    return shard.with_name(shard.name + INDEX_SUFFIX)


def _kept(shard: Path) -> Path:
    status = shard.stat()
    key = os.fsencode(f"{INDEX_VERSION}\0{shard.absolute()}\0{status.st_size}\0{status.st_mtime_ns}")
    return cache_folder() / f"{hashlib.sha256(key).hexdigest()[:32]}.npy"


def scan(shard: Path) -> np.ndarray:
    """Return a row for each image of a shard, (N,): offset, size, digest (0), checksum (-1), class and name.

    Digest and checksum are unknown, as the bytes of images are not read.

    Raises:
        ValueError: If the shard is not a whole, uncompressed tar, has two images of one name, or has an example whose
            image is not read.
    """
    try:
        with tarfile.open(shard, "r:") as tar:
            rows = [*_rows(tar, shard)]
            is_whole = tar.offset + tarfile.BLOCKSIZE <= shard.stat().st_size  # the end is marked by empty blocks
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"cannot read the shard {shard} ({error}): {NO_TAR}") from None
    if not is_whole:
        raise ValueError(f"cannot read the shard {shard} (it ends too early): {NO_TAR}")
    return _index(rows)


def _rows(tar: tarfile.TarFile, shard: Path) -> Iterator[tuple[int, int, int, int, bytes, bytes]]:
    """Yield offset, size, digest, checksum, class and name of each image."""
    for stem, files in groupby(_files(tar, shard), key=itemgetter(0)):
        image, label, noted, names = None, b"", [], []
        for _, suffix, file in files:
            names.append(file.name)
            if suffix in FORMAT_OF:
                if image is not None:
                    raise ValueError(f"{shard} has two images of the name {stem}: keep one of them")
                image = file
            elif suffix in LABELS:
                content = tar.extractfile(file).read()
                if suffix == ".cls":
                    label = content.strip()
                else:
                    noted.append((content, f"{shard}/{file.name}"))
        if not label and noted:  # beside a .cls, a .json may be about something else
            label = _class_of(*noted[-1])
        if image is not None:
            yield image.offset_data, image.size, 0, -1, label, os.fsencode(image.name)
        elif label or any(why_not_read(Path(name)) != "no image" for name in names):
            raise ValueError(
                f"{shard} has {list_names(names, 3, printable)}, and no image of this name that is read before or "
                f"after it: write it there, as {stem}.jpg or {stem}.png"
            )


def _files(tar: tarfile.TarFile, shard: Path) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yield each file with its name up to the first dot and the suffix from there on; hidden files are left out.

    Raises:
        ValueError: If a link stands in place of a file that is read.
    """
    for file in tar:
        tar.members = []  # else tarfile keeps every member in memory
        folder, slash, name = file.name.rpartition("/")
        stem, dot, suffix = name.partition(".")
        suffix = f"{dot}{suffix.lower()}"
        if stem and file.isfile():
            yield f"{folder}{slash}{stem}", suffix, file
        elif stem and (file.islnk() or file.issym()) and (suffix in FORMAT_OF or suffix in LABELS):
            raise ValueError(
                f"{shard} has {printable(file.name)} as a link to {printable(file.linkname)}: write the shard by tar "
                "--dereference --hard-dereference"
            )


def _class_of(content: bytes, name: str) -> bytes:
    try:
        noted = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON ({error}): write it as {AS_JSON}") from None
    found = [noted[key] for key in CLASS_KEYS if noted.get(key) is not None] if isinstance(noted, dict) else []
    if found and (isinstance(found[0], bool) or not isinstance(found[0], str | int)):
        raise ValueError(f"{name} has the class {found[0]!r}: write a name or a whole number, as {AS_JSON}")
    return str(found[0]).encode() if found else b""


def _index(rows: Sequence[tuple[int, int, int, int, bytes, bytes]]) -> np.ndarray:
    widths = [max((len(row[column]) for row in rows), default=1) or 1 for column in (4, 5)]
    kinds = ["<i8", "<i8", "<u8", "<i8", *(f"S{width}" for width in widths)]
    return np.array(rows, dtype=[*zip(COLUMNS, kinds, strict=True)])


def write_shard(shard: Path, files: Iterable[tuple[str, Path, int | None]]) -> dict[str, Any]:
    """Write a shard and its index, and return its entry in a manifest: images, bytes and sha256.

    The same files give the same bytes. A shard is complete once its index is there.

    Args:
        shard: Path of the tar.
        files: Name in the shard up to the dot, path and class number (or None) of each image.
    """
    rows = []
    with replacing(shard) as unfinished, tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
        for key, path, label in files:
            content, name = path.read_bytes(), f"{key}{path.suffix.lower()}"
            text = b"" if label is None else str(label).encode()
            _add(tar, name, content)
            place = tar.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            rows.append((place, len(content), digest_of(content), zlib.crc32(content), text, os.fsencode(name)))
            if label is not None:
                _add(tar, f"{key}.cls", text)
    with replacing(_beside(shard)) as unfinished, unfinished.open("wb") as file:
        np.save(file, _index(rows))
    return describe_shard(shard)


def describe_shard(shard: Path) -> dict[str, Any] | None:
    """Return the entry of a shard in a manifest: images, bytes and sha256; None if it is missing or has changed."""
    index = _load(_beside(shard))
    try:
        content = np.memmap(shard, mode="r")
    except (OSError, ValueError):  # the latter of a file without a byte
        return None
    if index is None:
        return None
    for offset, size, digest, crc32, *_ in index.tolist():
        image = content[offset : offset + size]
        if digest_of(image) != digest or zlib.crc32(image) != crc32:
            return None
    return {"images": len(index), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    tar.addfile(header, io.BytesIO(content))
