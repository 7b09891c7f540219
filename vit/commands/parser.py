"""What the commands share: a parser and a way to run that report a user's mistake in one line."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that reports a user's mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def run(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: Callable[[argparse.Namespace], None]
) -> None:
    """Run a command with the arguments typed (None: those of this process); exit with status 2 at a user's mistake."""
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        command(options)
    except (ValueError, OSError) as error:
        parser.error(" ".join(str(error).split()))
