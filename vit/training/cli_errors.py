"""Errors of the command line: one line with the error and its remedy, without a traceback."""

import difflib
import inspect
import logging
import re
import signal
import sys
import traceback
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import lightning
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

import vit.data

WORDING = {
    "Expected a <class 'int'>": "expected a whole number",
    "Expected a <class 'float'>": "expected a number",
    "Expected a <class 'bool'>": "expected true or false",
    "Expected a typing.Literal": "expected one of ",
    ". Got value:": ", got",
}


class Parser(LightningArgumentParser):
    """A parser that reports an error in one line, with the nearest existing name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False  # or --model.dept would be read as --model.depth

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and the nearest existing name; exit with status 2."""
        print(f"error: {shorten(message, _option_names(self))}", file=sys.stderr)
        raise SystemExit(2)


def shorten(message: str, known: set[str]) -> str:
    r"""Return one line for a message of jsonargparse, which can have ten.

    >>> shorten("Parser key \"model.depth\":\n  Expected a <class 'int'>. Got value: x", set())
    '--model.depth: expected a whole number, got x'
    >>> shorten("Option 'dept' is not accepted", {"depth", "lr"})
    "Option 'dept' is not accepted (did you mean depth?)"
    """
    modules = ", ".join(name for name in vit.data.__all__ if name not in ("ImageDataModule", "UnsortedImages"))
    if found := re.search(r"dot import path string: (\S+)", message):
        return f"no data module {found[1]}: choose one of {modules}{_nearest(found[1], set(vit.data.__all__))}"
    if re.search(r"required: (\w+\.)?data$", message):
        return f"no data: add --config FILE, or --data NAME with one of {modules}"
    if found := re.search(r"arguments are required: (\w+)$", message):
        return f"an argument is missing: add --data.{found[1]}"
    line = re.sub(r"\s+", " ", message)
    line = re.sub(r'Parser key "([^"]+)": ', r"--\1: ", line)
    for theirs, ours in WORDING.items():
        line = line.replace(theirs, ours)
    if not re.search("not accept|nrecognized|invalid choice", line):
        return line
    words = [word.split("=")[0] for word in re.findall(r"[\w.=+-]+", message)]
    unknown = [word.lstrip("-") for word in words if word.lstrip("-") not in known]
    return line + next((hint for word in unknown if (hint := _nearest(word, known))), "")


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near and near[0] != name else ""


def _option_names(parser: ArgumentParser) -> set[str]:
    """Return all options of a parser and its subcommands, and the arguments of all data modules."""
    names = {"fit", "validate", "test", "predict"}
    for action in parser._actions:
        names |= {option.lstrip("-") for option in action.option_strings}
        choices = getattr(action, "choices", None)
        for subparser in choices.values() if isinstance(choices, dict) else ():
            names |= {option.lstrip("-") for part in subparser._actions for option in part.option_strings}
    for module in vit.data.__all__:
        for argument in inspect.signature(getattr(vit.data, module)).parameters:
            names |= {argument, f"data.{argument}"}
    return names - {"kwargs", "data.kwargs"}


@contextmanager
def plain_output() -> Iterator[None]:
    """Hide the log messages of the frameworks; print an error that vit or Lightning raised on purpose in one line."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 uses a name that torch 2.15 deprecates.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            # torch.compile reads the gradient of the tokens that enter a block.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
            yield
    except SIGTERMException:
        raise SystemExit(128 + signal.SIGTERM) from None  # as the shell reports it
    except MisconfigurationException as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (ValueError, OSError) as error:
        if (deliberate := _deliberate_cause(error)) is None:
            raise
        print(f"error: {deliberate}", file=sys.stderr)
        raise SystemExit(2) from None


def _deliberate_cause(error: BaseException | None) -> BaseException | None:
    """Return the first error that vit or Lightning raised itself, among this one and its causes."""
    while error is not None and not _is_deliberate(error):
        error = error.__cause__ or error.__context__
    return error


def _is_deliberate(error: BaseException) -> bool:
    """Whether the line that raised an error is in vit or Lightning."""
    lines = traceback.extract_tb(error.__traceback__)
    folders = [Path(package.__file__).parent for package in (vit, lightning)]
    return bool(lines) and any(folder in Path(lines[-1].filename).parents for folder in folders)
