"""What the heads of a trained model do, from the command line: ``vit-attention analysis --checkpoint best.ckpt``."""

import argparse
import sys
from collections.abc import Sequence

from vit.commands.models import add_checkpoint, find_model, tell_assumed, title_of
from vit.commands.parser import Parser, add_out, add_overwrite
from vit.commands.parser import run as run_command
from vit.glossary import HEADS
from vit.support.files import check_outputs, unused_folder
from vit.support.printable import printable
from vit.support.progress import progress
from vit.support.words import listed

OUT = "analysed"  # the folder of all files
FEWEST = 20  # images; of fewer, no share would mean anything


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: that of this process); exit with status 2 at a user's mistake."""
    typed = sys.argv[1:] if arguments is None else arguments
    run_command(_parser(), typed, lambda options: run(options, ["vit-attention", "analysis", *typed]))


def _parser() -> Parser:
    parser = Parser(
        prog="vit-attention analysis",
        description="Measure what the layers and heads of a trained model do, each measure beside its control: a page\n"
        "(index.html), pictures, and a table of the heads (heads.csv).",
        epilog=f"kinds of heads, the first that fits:\n{listed(HEADS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_checkpoint(parser)
    add("--data.root", dest="root", metavar="DIR", help="folder of class folders; default: the data of the checkpoint")
    add("--images", type=int, default=500, metavar="N", help="most test images that are measured; default: 500")
    add_out(parser, OUT)
    add_overwrite(parser)
    return parser


def run(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Analyse the model of a command line.

    Raises:
        ValueError: At a user's mistake.
    """
    if options.images < FEWEST:
        raise ValueError(f"--images ({options.images}) must be at least {FEWEST}: of fewer, no share means anything")
    # Imported here, as these import matplotlib and torchvision, which takes seconds.
    from vit.analysis.answers_page import PAGE, TABLE, write_page, write_table
    from vit.analysis.questions import PICTURES, QUESTIONS, Answer, ask
    from vit.analysis.trained_model import read_trained_model

    out = options.out or unused_folder(OUT, options.overwrite)
    check_outputs([out / name for name in (PAGE, TABLE, *PICTURES)], options.overwrite)
    model = find_model(options.checkpoint)
    subject = read_trained_model(model, options.root, options.images)
    tell_assumed(subject.model)
    if (count := len(subject.held_out.labels)) < FEWEST:
        print(f"note: only {count} images are held out, and of fewer than {FEWEST} no share means much", flush=True)
    answers: dict[str, Answer | str] = {}
    for question in progress(QUESTIONS, "questions"):
        answers[question] = answer = ask(question, subject, out)
        found = f"Not measured: {answer}" if isinstance(answer, str) else f"{answer.found}\n  Control: {answer.control}"
        print(f"{question} {found}", flush=True)
    write_table(out / TABLE, [answer for answer in answers.values() if isinstance(answer, Answer)])
    title = f"What the heads of {title_of(model)} do"
    print(printable(str(write_page(out, title, subject.facts(), answers, command))))
