"""Files that are written whole or not at all."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HOST = socket.gethostname()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file written there takes the place of ``path`` at the end.

    After an error, and after a kill, ``path`` is what it was before.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "results.json"
    >>> with replacing(path) as unfinished:
    ...     _ = unfinished.write_text("{}")
    >>> path.read_text()
    '{}'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{HOST}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        with unfinished.open("r+b") as file:  # on disk before the name points to it, or a power cut leaves neither
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete the unfinished files below a folder whose process, on this machine, was killed."""
    for path in folder.rglob(f".*.{HOST}.*.unfinished"):
        process = path.name.split(".")[-2]
        if process.isdecimal() and not _is_running(int(process)):
            with suppress(OSError):
                path.unlink()


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
