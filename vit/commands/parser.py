"""What the commands share: a parser and a way to run that report a user's mistake in one line, and options."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from vit.support.files import plain_message
from vit.support.interrupts import stoppable
from vit.support.printable import printable


class Parser(argparse.ArgumentParser):
    """A parser that reports a user's mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        print(f"error: {printable(message)}", file=sys.stderr)
        raise SystemExit(2)


def run(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: Callable[[argparse.Namespace], None]
) -> None:
    """Run a command with the arguments typed (None: those of this process).

    A user's mistake ends with status 2, and Ctrl-C with 130.
    """
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        with stoppable():
            command(options)
    except BrokenPipeError:  # of whatever the output is piped to, which vit.support.interrupts knows
        raise
    except (ValueError, OSError) as error:
        parser.error(" ".join(plain_message(error).split()))


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the option that all commands share which write files."""
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist; else they are an error")
