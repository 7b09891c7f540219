"""What ends a command from outside: Ctrl-C, and a reader that has closed the pipe. Neither ends in a traceback."""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT  # as shells report it
STOPPED = "stopped by Ctrl-C"
PIPE_CLOSED = 141  # 128 + SIGPIPE, which Windows lacks


class Interrupts:
    """Handles Ctrl-C, and notes whether it came: libraries turn its ``KeyboardInterrupt`` into other errors."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.came = False

    def end_at_once(self, number: int, frame: FrameType | None) -> None:
        """End the process at any line: an import that is cut off leaves nothing to tidy up."""
        if os.getpid() == self.process and _is_first_process():  # a worker says nothing
            os.write(2, f"{STOPPED}\n".encode())  # print cannot be entered again while it is interrupted
        os._exit(INTERRUPTED)

    def raise_error(self, number: int, frame: FrameType | None) -> None:
        """Raise ``KeyboardInterrupt``, so that half-written files are deleted."""
        self.came = True
        raise KeyboardInterrupt

    def end_if_lost(self, ignored: Any) -> None:
        """End the process if Python ignores a ``KeyboardInterrupt``, as it does in a destructor or a callback."""
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            self.end_at_once(signal.SIGINT, None)
        sys.__unraisablehook__(ignored)


def _is_first_process() -> bool:
    """Whether this is the process that prints, if several train together."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def starting() -> Iterator[None]:
    """Run a program whose imports take seconds: Ctrl-C ends it at once, with one line and status 130.

    Output that cannot be written ends it too, without a traceback: in silence and with status 141 if the reader of a
    pipe is gone, as in ``... | head -1``.

    >>> with starting():
    ...     print("import, parse, work")
    import, parse, work
    """
    interrupts = Interrupts()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of files may be bytes in no encoding
    with _on_interrupt(interrupts.end_at_once), _quiet_output():
        yield


@contextmanager
def stoppable() -> Iterator[None]:
    """Run the work of a command: Ctrl-C raises ``KeyboardInterrupt`` in it, then ends it with a line and status 130."""
    interrupts = Interrupts()
    hook = sys.unraisablehook
    with _on_interrupt(interrupts.raise_error):
        sys.unraisablehook = interrupts.end_if_lost
        try:
            yield
        except BaseException as error:
            if not (interrupts.came or isinstance(error, KeyboardInterrupt)):
                raise
            if _is_first_process():
                print(f"\n{STOPPED}" if sys.stderr.isatty() else STOPPED, file=sys.stderr)  # below ^C and a progress
            raise SystemExit(INTERRUPTED) from None
        finally:
            sys.unraisablehook = hook


@contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    """Call a handler at Ctrl-C, unless the process ignores it, as one in the background of a script does."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Write all output before Python ends: at its end, Python would print a traceback if it could not."""
    try:
        yield
    except BrokenPipeError:
        for stream in filter(_is_broken, (sys.stdout, sys.stderr)):
            _silence(stream)
            raise SystemExit(PIPE_CLOSED) from None
        raise
    finally:
        _write_out()


def _write_out() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            _silence(stream)
            if isinstance(error, BrokenPipeError):
                raise SystemExit(PIPE_CLOSED) from None
            print(f"error: the output cannot be written ({error.strerror})", file=sys.stderr)
            raise SystemExit(2) from None


def _is_broken(stream: Any) -> bool:
    """Whether the other end of a stream is gone, and not that of some other pipe."""
    if not hasattr(select, "poll"):  # Windows
        return False
    watched = select.poll()
    watched.register(stream, select.POLLOUT)
    return any(event & select.POLLERR for _, event in watched.poll(0))


def _silence(stream: Any) -> None:
    """Send what a stream still holds to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
