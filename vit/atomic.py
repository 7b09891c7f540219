"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        with unfinished.open("r+b") as file:  # on disk before the name points to it, or a power cut leaves neither
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
