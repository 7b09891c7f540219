"""Writes files whole or not at all, replaces none without the user's leave, and explains errors of writing."""

import errno
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryFile

HOST = socket.gethostname()
MOST_LETTERS = 40  # of a file's name in the name of its unfinished file; a name has at most 255 bytes
CALLS = count()  # names may share these letters, so that each call has a number of its own
REMEDIES = {
    errno.EACCES: "name another place, or change its permissions",
    errno.EPERM: "name another place, or change its permissions",
    errno.EROFS: "name a place on another disk",
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "name another place: a part of the path is a file and no folder",
    errno.EEXIST: "name another place: a part of the path is a file and no folder",
}


class UnwritableError(OSError):
    """A file that cannot be written, in one line with the remedy."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        super().__init__(f"cannot write {path} ({self.reason}): {REMEDIES.get(error.errno, 'name another place')}")


def plain_message(error: BaseException) -> str:
    """Return the message of an error; for the operating system's, without its number, but with its file and a remedy.

    >>> plain_message(IsADirectoryError(21, "Is a directory", "photos"))
    'photos: is a directory: name a file'
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    file = [] if error.filename is None else [os.fsdecode(error.filename)]
    reason = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
    return ": ".join([*file, reason, *([REMEDIES[error.errno]] if error.errno in REMEDIES else [])])


def check_outputs(paths: Iterable[Path], overwrite: bool) -> None:
    """Check, before hours of work, that files can be written, and that none is lost without ``--overwrite``.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> check_outputs([folder / "new" / "maps.png"], overwrite=False)
    >>> (folder / "maps.png").touch()
    >>> check_outputs([folder / "maps.png"], overwrite=True)

    Args:
        paths: The files.
        overwrite: Whether those that exist are replaced.

    Raises:
        ValueError: If a file exists and is not to be replaced, or is a folder or a device.
        UnwritableError: If a file could not be written: no permission, a name that is too long, ...
    """
    places: dict[Path, Path] = {}  # the folders that exist, and a file to write below each
    for path in paths:
        with writing(path):
            is_there = _is_there(path)
            if path.is_dir():
                raise ValueError(f"{path} is a folder: name a file")
            if path.exists() and not path.is_file():
                raise ValueError(f"{path} is no file on a disk: name another one")
            if is_there and not overwrite:
                raise ValueError(f"{path} exists: add --overwrite, or name another file")
            places.setdefault(next(folder for folder in path.absolute().parents if folder.exists()), path)
    for folder, path in places.items():
        # We try it, as permissions tell neither a full disk nor that nothing can be created below /proc.
        with writing(path), TemporaryFile(dir=folder):
            pass


def _is_there(path: Path) -> bool:
    """Return whether there is a file, a folder or a link. A name that no file can have is an error.

    From Python 3.14 on, ``Path.exists`` is False for such a name.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def unused_folder(name: str, overwrite: bool) -> Path:
    """Return a folder for the outputs of a command, with a number after its name if it has files already.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> (folder / "cells.csv").touch()
    >>> unused_folder(str(folder), overwrite=False).name == f"{folder.name}_1"
    True

    Args:
        name: The folder, without a number.
        overwrite: Whether files in that folder are to be replaced, so that it needs no number.
    """
    names = chain([name], (f"{name}_{number}" for number in count(1)))
    free = (path for path in map(Path, names) if not path.exists() or (path.is_dir() and not any(path.iterdir())))
    return Path(name) if overwrite else next(free)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file or folder written there takes the place of ``path`` at the end.

    After an error or a kill, ``path`` is what it was before.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "results.json"
    >>> with replacing(path) as unfinished:
    ...     _ = unfinished.write_text("{}", encoding="utf-8")
    >>> path.read_text(encoding="utf-8")
    '{}'

    Raises:
        UnwritableError: If the file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        letters = path.name[:MOST_LETTERS]
        unfinished = path.with_name(f".{letters}.{HOST}.{next(CALLS)}.{os.getpid()}.unfinished")
        try:
            yield unfinished
            if unfinished.is_dir():
                _replace_folder(path, unfinished)
                return
            with unfinished.open("r+b") as file:  # on disk before the name points to it, or a power cut leaves neither
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            _delete(unfinished)


def _replace_folder(path: Path, new: Path) -> None:
    """Put a folder in the place of another one, which is renamed to "previous" for an instant."""
    previous = path.with_stem(f"{path.stem}.previous")
    _delete(previous)
    if path.exists():
        path.rename(previous)
    new.rename(path)
    _delete(previous)


def _delete(path: Path) -> None:
    """Delete a file or a folder, if it is there and can be."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into an ``UnwritableError`` about a file."""
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(path, error) from error


def cache_folder() -> Path:
    """Return the folder of the cache: ``$XDG_CACHE_HOME/vit``, or ``~/.cache/vit``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"


def sweep(folder: Path) -> None:
    """Delete unfinished files and folders below a folder if the process that wrote them, on this machine, has ended."""
    for path in folder.rglob(f".*.{HOST}.*.unfinished"):
        process = path.name.split(".")[-2]
        if process.isdecimal() and not _is_running(int(process)):
            _delete(path)


def _is_running(process: int) -> bool:
    if os.name != "posix":  # elsewhere, os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
