"""What the heads of a trained model do, from the command line: ``python -m vit.analysis --checkpoint best.ckpt``."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

import vit
from vit.model import VisionTransformer
from vit.weights import read_checkpoint

FEWEST = 20  # images; of fewer, no share would mean anything


class Parser(argparse.ArgumentParser):
    """A parser that reports a user's mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: that of this process); exit with status 2 at a user's mistake."""
    parser = _parser()
    typed = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(typed)
    try:
        run(options, ["python", "-m", "vit.analysis", *typed])
    except (ValueError, OSError) as error:
        parser.error(" ".join(str(error).split()))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m vit.analysis",
        description="Measure what the layers and heads of a trained model do, each measure beside its control: a page "
        "(index.html), pictures, and a table of the heads (heads.csv).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="checkpoint written by a training run")
    add("--data.root", dest="root", metavar="DIR", help="folder of class folders; default: the data of the checkpoint")
    add("--images", type=int, default=500, metavar="N", help="most test images that are measured; default: 500")
    add("--out", type=Path, default=Path("analysed"), metavar="FOLDER", help="for all files; default: analysed")
    return parser


def run(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Analyse the model of a command line.

    Raises:
        ValueError: At a user's mistake.
    """
    if options.images < FEWEST:
        raise ValueError(f"--images ({options.images}) must be at least {FEWEST}: of fewer, no share means anything")
    model = vit.load(options.checkpoint)
    checkpoint = read_checkpoint(options.checkpoint)
    # Imported here, as these import Lightning, matplotlib and scikit-learn, which takes seconds.
    from vit.analysis.accuracy import accuracy
    from vit.analysis.labelled import labelled_images
    from vit.analysis.page import write_page, write_table
    from vit.analysis.questions import QUESTIONS, Answer, Subject, margin

    name, trained_on, held_out = labelled_images(model, checkpoint.get("data", {}), options.root, options.images)
    subject = Subject(model, _untrained(checkpoint["hyper_parameters"]), trained_on, held_out)
    right, count = accuracy(model, *held_out), len(held_out.labels)
    options.out.mkdir(parents=True, exist_ok=True)
    answers: dict[str, Answer | str] = {}
    for question, ask in QUESTIONS.items():
        try:
            answers[question] = answer = ask(subject, options.out)
            print(f"{question} {answer.found}\n  Control: {answer.control}", flush=True)
        except ValueError as error:
            answers[question] = str(error)
            print(f"{question} Not measured: {error}", flush=True)
    write_table(options.out / "heads.csv", [answer for answer in answers.values() if isinstance(answer, Answer)])
    facts = [
        f"{name}: right on {100 * right:.1f} % of {count} test images. A difference of less than "
        f"{100 * margin(right, count):.1f} points may be chance.",
        _start(checkpoint["hyper_parameters"]),
    ]
    print(write_page(options.out, f"What the heads of {options.checkpoint} do", facts, answers, command))


def _untrained(arguments: dict[str, Any]) -> VisionTransformer:
    """Return the model of a checkpoint before training, with other random weights."""
    names = inspect.signature(VisionTransformer).parameters
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VisionTransformer(**{name: value for name, value in arguments.items() if name in names}).eval()


def _start(arguments: dict[str, Any]) -> str:
    start = "Before training means a model of the same size with new random weights"
    if arguments.get("init", "glorot") == "glorot":
        return f"{start}."
    return f"{start} after Glorot; the training itself started from {arguments['init']} weights."


if __name__ == "__main__":
    main()
