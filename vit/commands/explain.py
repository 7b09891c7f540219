"""Maps of image files from the command line: ``vit-attention explain photo.jpg``, ``--checkpoint best.ckpt``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from vit.commands.models import HELP
from vit.commands.parser import Parser, add_max_pixels, add_out, add_overwrite
from vit.commands.parser import run as run_command
from vit.explain import CLASS_AGNOSTIC, METHODS
from vit.explain.default_method import DEFAULT_METHOD
from vit.explain.maps import check_method
from vit.glossary import MAPS
from vit.support.files import unused_folder
from vit.support.words import listed
from vit.weights import PACKAGED

OUT = "explained"  # the folder of the pictures
ALL = "all"  # in place of a method
FORMATS = ("png", "svg", "pdf")


class ImageParser(Parser):
    """A parser for a command whose images come before the options."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        super().error(message + (", before all options" if message.endswith(": IMAGE") else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: that of this process); exit with status 2 at a user's mistake."""
    run_command(_parser(), arguments, run)


def _parser() -> Parser:
    parser = ImageParser(
        prog="vit-attention explain",
        usage="vit-attention explain IMAGE... [--checkpoint FILE] [options]",
        description="Predict the classes of images with a trained model, and draw which patches matter to it.",
        epilog=f"methods:\n{listed(MAPS)}\n\nThe same map for every class: {', '.join(CLASS_AGNOSTIC)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("image", nargs="+", type=Path, metavar="IMAGE", help="image files, and folders of image files")
    add("--checkpoint", default=PACKAGED[0], metavar="MODEL", help=f"{HELP}; default: {PACKAGED[0]}")
    add(
        "--method",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or more of those below, or {ALL} for one sheet of all; default: {DEFAULT_METHOD}",
    )
    add("--layer", type=int, metavar="N", help="show the attention of this layer, from 0; default: the last")
    add("--head", type=int, metavar="N", help="show the attention of this head, from 0; default: the mean of all heads")
    add("--target", metavar="CLASS", help="name or number of the class to explain; default: the predicted one")
    add("--versus", metavar="CLASS", help="class to compare with: why the target, and not this one?")
    add("--compare", metavar="MODEL", help="a second model, whose maps are drawn beside those of the first")
    add("--size", type=int, metavar="N", help="pixels of the longer side of a photograph; default: its own, to 1,600")
    add("--format", choices=FORMATS, default="png", help="of the pictures; default: png")
    add_out(parser, OUT)
    add(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write a page to explore all heads: to FILE, or one for each image to the folder",
    )
    add("--contributions", action="store_true", help="also split the logit: a picture of its terms, and a table of all")
    add("--trust", action="store_true", help="also report how far these maps can be trusted")
    add_max_pixels(parser)
    add_overwrite(parser)
    return parser


def run(options: argparse.Namespace) -> None:
    """Explain the images of a command line.

    Raises:
        ValueError: At a user's mistake.
    """
    _check_methods(options.method or [])
    _check_together(options)
    # Imported here, as it imports Pillow and matplotlib, which --help does not need.
    from vit.commands.explain_files import explain_files

    options.out = options.out or unused_folder(OUT, options.overwrite)
    explain_files(options, _methods(options), only_sheet=ALL in (options.method or []))


def _check_methods(methods: Sequence[str]) -> None:
    for method in methods:
        if method not in (*METHODS, ALL) and Path(method).exists():
            raise ValueError(f"{method!r} is a file and no method: name images before the options")
        if method != ALL:
            check_method(method)


def _check_together(options: argparse.Namespace) -> None:
    of_one = [
        ("--html", options.html is not None),
        ("--contributions", options.contributions),
        ("--trust", options.trust),
    ]
    for name, is_given in of_one:
        if is_given and options.compare:
            raise ValueError(f"{name} is about one model, and --compare draws two: leave one of them out")
    if options.trust and (options.layer, options.head) != (None, None):
        raise ValueError("--trust is about whole methods: leave out --layer and --head, or --trust")
    if options.compare == options.checkpoint:
        raise ValueError(f"--compare {options.compare} is the model itself: name another one")


def _methods(options: argparse.Namespace) -> list[str]:
    """Return the methods that a user asks for: attention, if only a layer or a head is given."""
    if options.method is None:
        return [DEFAULT_METHOD if options.layer is None and options.head is None else "attention"]
    return [*METHODS] if ALL in options.method else options.method
