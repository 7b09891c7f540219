"""The command ``vit-attention export``: a model as a program that runs without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit.commands.models import HELP, find_model, tell_assumed
from vit.commands.parser import Parser, add_overwrite, run
from vit.support.files import check_outputs
from vit.support.printable import printable
from vit.weights.export import FORMATS, export, exported_files


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention export``; exit with status 2 at a user's mistake."""
    parser = Parser(
        prog="vit-attention export",
        description="Write a model as a program for any number of images (.xml: of the model's size; else of any "
        "size), and compare the two.",
        epilog="Example: vit-attention export cifar10 cifar10.onnx",
        allow_abbrev=False,
    )
    endings = "; ".join(f"{ending} for {reader}" for ending, reader in FORMATS.items())
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument("output", type=Path, metavar="FILE", help=f"its ending names the format: {endings}")
    add_overwrite(parser)
    run(parser, arguments, _export)


def _export(options: argparse.Namespace) -> None:
    from vit.weights import load

    check_outputs(exported_files(options.output), options.overwrite)
    model = load(find_model(options.model))
    tell_assumed(model)
    difference = export(model, options.output)
    print(f"{printable(str(options.output))}: its logits differ from the model's by {difference:.1g} at most")
