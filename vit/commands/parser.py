"""What the commands share: a parser and a runner, which report a user's mistake in one line, and some options."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from vit.support.checks import check_positive_int
from vit.support.files import plain_message
from vit.support.interrupts import stoppable
from vit.support.kept_memory import keep_freed_memory
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
    keep_freed_memory()
    try:
        if getattr(options, "max_pixels", None) is not None:
            check_positive_int("--max_pixels", options.max_pixels, "leave it out for the limit of Pillow, 178956970")
        with stoppable():
            command(options)
    except BrokenPipeError:  # the reader of the output is gone, which vit.support.interrupts handles
        raise
    except (ValueError, OSError) as error:
        parser.error(" ".join(plain_message(error).split()))


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the option that all commands that write files share."""
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist; else they are an error")


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option of the folder that a command writes to; its default is ``unused_folder`` of the name."""
    said = f"to write to; default: {name}, or {name}_1, {name}_2, ... where files are there already"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=said)


def add_max_pixels(parser: argparse.ArgumentParser) -> None:
    """Add the option that all commands that read image files share, also under its name in the training."""
    parser.add_argument(
        "--max_pixels",
        "--data.max_pixels",
        dest="max_pixels",
        type=int,
        metavar="N",
        help="most pixels of an image file; larger ones count as damaged, as a small file may claim to be huge",
    )


def add_skip_damaged(parser: argparse.ArgumentParser) -> None:
    """Add the option that leaves out images that cannot be read, under its name in the training."""
    parser.add_argument(
        "--data.skip_damaged",
        dest="skip_damaged",
        choices=["true", "false"],
        default="false",
        help="true leaves out files that cannot be read; default: false, which names them",
    )
