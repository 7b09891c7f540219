"""A line on the terminal that says how far a loop is: done, total, time left."""

import io
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import redirect_stdout
from datetime import timedelta
from typing import TextIO, TypeVar

T = TypeVar("T")

FEW = 3  # items that need no line
INTERVAL = 0.1  # seconds between two states of the line


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show on the terminal how many are done and how long the others will take.

    The line stands on standard error. It is erased at the end, and before the loop prints a line of its own. Without
    a terminal, or with at most 3 items, there is no line.

    >>> for image in progress(range(120), "images explained"):
    ...     pass

    Args:
        items: What the loop runs over.
        what: What the line counts, such as "images explained".
        total: Number of items; None asks the items for their length. If they have none, no time left is shown.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    if not sys.stderr.isatty() or (total is not None and total <= FEW):
        yield from items
        return
    line = _Line(sys.stderr)
    out = _Above(sys.stdout, line) if sys.stdout.isatty() else sys.stdout
    begun = time.monotonic()
    drawn = begun - INTERVAL
    try:
        with redirect_stdout(out):
            for done, item in enumerate(items):
                now = time.monotonic()
                if now - drawn >= INTERVAL:
                    line.show(_describe(done, what, total, now - begun))
                    drawn = now
                yield item
    finally:
        line.show("")


def _describe(done: int, what: str, total: int | None, seconds: float) -> str:
    if total is None:
        return f"{done:,} {what}, {_clock(seconds)} so far"
    left = f", {_clock(max(0, total - done) * seconds / done)} left" if done else ""
    return f"{done:,} of {total:,} {what}{left}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class _Line:
    """The last line of a terminal, whose text can be replaced."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        self.width = 0  # of the text that is shown

    def show(self, text: str) -> None:
        """Replace the text; no text erases the line."""
        text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be erased
        blank = f"\r{' ' * self.width}\r" if self.width else ""
        if blank or text:
            self.terminal.write(f"{blank}{text}")
            self.terminal.flush()
        self.width = len(text)


class _Above(io.TextIOBase):
    """Standard output on the terminal of a line: the line is erased before anything else is written."""

    def __init__(self, out: TextIO, line: _Line) -> None:
        self.out, self.line = out, line

    def write(self, text: str) -> int:
        """Write a text."""
        self.line.show("")
        return self.out.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self.out.flush()
