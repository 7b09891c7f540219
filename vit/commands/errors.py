"""Errors of the command line: one line with the error and its remedy, without a traceback."""

import difflib
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
import torch
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

import vit.data
from vit.model.vision_transformer import VisionTransformer
from vit.objectives import OBJECTIVES
from vit.support.arguments import constructor_arguments
from vit.support.checks import nearest_hint
from vit.support.files import REMEDIES, plain_message
from vit.support.interrupts import stoppable
from vit.support.printable import printable

# Types as jsonargparse writes them, and in words.
WORDS = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "<class 'NoneType'>": "null",
    "<class 'tuple'>": "a list such as [1,2]",
    "<class 'list'>": "a list",
    "<class 'dict'>": "a mapping such as {name: value}",
    "<class 'collections.abc.Iterable'>": "a list",
    "dot import path string": "the name of a class",
}
# Arguments and values of timm, and what they are called here.
OF_TIMM = {
    "img_size": "--data.image_size",
    "in_chans": "--model.in_channels, which the data sets",
    "drop_path_rate": "--model.drop_path",
    "drop_rate": "--model.dropout",
    "global_pool": "--model.pool",
    "init_values": "--model.layer_scale",
    "reg_tokens": "--model.num_registers",
    "patch_drop_rate": "--model.patch_drop",
    "token": "cls",
    "avg": "mean",
}
# What people type, and the option that does it.
ELSEWHERE = {
    "epochs": "--trainer.max_epochs",
    "gpus": "--trainer.accelerator gpu --trainer.devices",
    "lr_scheduler": "--model.decay and --model.warmup, or comes after --optimizer,",
    "output_dir": "--trainer.default_root_dir",
    "resume": "--ckpt_path",
    "run_dir": "--trainer.default_root_dir",
    "seed": "--seed_everything",
    "version": "vit-attention --version",
}
ALIKE = 0.75  # similarity from which on a name counts as a misspelling: "version" and "erasing" have 0.71
LESS_MEMORY = "try a smaller --data.batch_size or --data.image_size, a larger --model.patch_size, or a smaller model"
# The remedy of an error of the model, and the same with options of the command line.
CUT = (
    r"must be a multiple of (\w+) (\(.*?\)): resize the images to \((\d+), (\d+)\), change the patch, or set pad_images"
)
CUT_BY_OPTIONS = (
    r"must be a multiple of \1 \2: set --data.image_size [\3,\4] if the data have it, another --model.\1, or "
    r"--model.pad_images true"
)
TOO_EARLY = r"Early stopping conditioned on metric `(\w+)` which is not available\..*"
NOT_YET = (
    r"EarlyStopping looks for \1 before it is logged: train_loss and lr are there after log_every_n_steps steps, so "
    r"set --trainer.log_every_n_steps 1; scores are there after a validation, so set its check_on_train_epoch_end to "
    r"false"
)
NO_TENSORBOARD = "TensorBoardLogger needs tensorboard, which is not installed: pip install 'vit-attention[tensorboard]'"
# What gloo, NCCL and the store of torch say when a process that they wait for is gone.
LOST = r"(closed|reset) by peer|Broken pipe|NCCL|TCPStore"
# What Triton says, which compiles for GPUs.
NO_COMPILER = "Failed to find C compiler"
# The error if the data give a model an argument of a type that its class does not take.
UNFIT = r"Expected a ([^\n]+?)\. Got value: ([^\n]+)\n.*Given value: Namespace\(class_path='([\w.]+)'"
# Warnings that tell a user nothing new.
NOTICES = [
    (".*LeafSpec", FutureWarning),  # Lightning 2.6 uses a name that torch 2.15 deprecates
    ("The .grad attribute of a Tensor", UserWarning),  # torch.compile reads the gradient of what enters a block
    ("The number of training batches", UserWarning),  # the last batch of an epoch is logged in any case
    (".*does not have many workers", UserWarning),  # the images are in memory
    ("`max_epochs` was not set", UserWarning),  # the header has the length
    ("Checkpoint directory .* exists", UserWarning),
    (".*configure_optimizers` will be overridden", UserWarning),  # by --optimizer; a line of ours says so
    ("Be aware that when using `ckpt_path`", UserWarning),  # earlier versions chose some best weights by another score
    ("Found .* in eval mode", UserWarning),  # frozen blocks, on purpose
    ("You requested to overfit", UserWarning),  # the order is not shuffled anew in each epoch, as Lightning says
    (".*Unable to serialize instance", UserWarning),  # of a callback's argument: config.yaml has the others
    ("Glyph .* missing from font", UserWarning),  # draw_texts names them
]
LONGEST = 400  # characters of a message


class Parser(LightningArgumentParser):
    """A parser that reports an error in one line, with the nearest existing name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"description": "Train, test and use a model for images."} | kwargs)
        self.allow_abbrev = False  # else --model.dept would be read as --model.depth

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and the nearest existing name; exit with status 2."""
        print(f"error: {printable(shorten(message, _option_names(self)))}", file=sys.stderr)
        raise SystemExit(2)


def shorten(message: str, known: set[str]) -> str:
    r"""Return one line for a message of jsonargparse, which can have ten.

    >>> shorten("Parser key \"model.depth\":\n  Expected a <class 'int'>. Got value: x", set())
    '--model.depth: expected a whole number, got x'
    >>> shorten("Option 'dept' is not accepted", {"depth", "lr"})
    "Option 'dept' is not accepted (did you mean depth?)"
    >>> shorten("Option 'img_size' is not accepted", set())
    "Option 'img_size' is not accepted (img_size of timm is here --data.image_size)"
    """
    modules = ", ".join(vit.data.DATA_SETS)
    line = re.sub(r"\s+", " ", message).strip()
    if re.search(r"required: (\w+\.)?data$", line):
        return f"no data: add --config FILE, or --data NAME with one of {modules}"
    if re.search(r"required: fit.data, fit.model$", line):
        return f"no data and no model: add --config FILE, or --data NAME with one of {modules}"
    if found := re.search(r"arguments are required: (\w+)$", line):
        owners, models = _owners(found[1])
        group = "data" if owners else "model" if models else "trainer.callbacks"
        return f"an argument is missing: add --{group}.{found[1]}" + (f", for {owners[0]}" if len(owners) == 1 else "")
    if found := re.search(r"Option '(\w+)' is not accepted", line):
        owners, models = _owners(found[1])
        if models and not owners:
            return f"--model.{found[1]} is an option of {', '.join(models)}: add --model NAME with one of these"
        if owners:
            return f"--data.{found[1]} is an option of {', '.join(owners)}: add --data NAME with one of these"
    if found := re.match(r'Parser key "([^"]+)": ?(.*)$', line):
        of_class = () if "dot import path" in found[2] else (f"data.{found[1]}", f"model.{found[1]}")
        key = next((name for name in of_class if name in known), found[1])
        line = f"--{key}: {_expectation(key, found[2])}"
    return (line if len(line) <= LONGEST else f"{line[:LONGEST]} ...") + _hint(line, known)


def _expectation(key: str, rest: str) -> str:
    """Return "expected A, B or C, got VALUE" for the failed checks of a value, each of which names a type."""
    got = re.search(r"Given value: (.*)$", rest) or re.search(r"Got value: (.*)$", rest)
    expected = re.findall(r"Expected a (typing\.Literal\[.*?\]|dot import path string|<class '[^']+'>)", rest)
    if got is None or not expected:
        return rest
    for group, names in (("data", set(vit.data.DATA_SETS)), ("model", set(OBJECTIVES))):
        if key.split(".")[-1] == group:
            known = f"choose one of {', '.join(sorted(names))}{nearest_hint(got[1], names)}"
            return f"unknown {'data set' if group == 'data' else group} {got[1]!r}: {known}"
    words = dict.fromkeys(WORDS.get(each, each.replace("typing.Literal", "one of ")) for each in expected)
    *others, last = words
    return f"expected {', '.join(others)}{' or ' if others else ''}{last}, got {got[1]}"


def _hint(line: str, known: set[str]) -> str:
    """Return, in parentheses, the name that was probably meant by an unknown name in a message."""
    words = [word.split("=")[0].lstrip("-") for word in re.findall(r"[\w.=+-]+", line)]
    for name in (word.rsplit(".", 1)[-1] for word in words):
        if name in OF_TIMM and re.search("nrecognized|not accept|got ", line):
            return f" ({name} of timm is here {OF_TIMM[name]})"
    if not re.search("not accept|nrecognized|invalid choice", line):
        return ""
    typed = [word for word in words if re.search(f"(-|'){re.escape(word)}\\b", line)]
    return next((hint for word in typed if (hint := _nearest(word, known, "nrecognized" in line))), "")


def _nearest(word: str, known: set[str], is_whole: bool) -> str:
    """Return, in parentheses, the option that was probably meant by a typed word; "" if there is none.

    Args:
        word: What was typed.
        known: All names.
        is_whole: Whether the word is a whole option, and not the last part of one.
    """
    if word in ELSEWHERE:
        return f" (it is {ELSEWHERE[word]} here)"
    last = {name.rpartition(".")[2]: f"--{name}" for name in sorted(known) if "." in name}
    if not is_whole:
        near = [] if word in known else difflib.get_close_matches(word, known, n=1, cutoff=ALIKE)
        return f" (did you mean {near[0]}?)" if near else ""
    options = {name: f"--{name}" for name in known if "." in name or name not in last}
    for names in (options, last):
        if word not in options and (near := difflib.get_close_matches(word, names, n=1, cutoff=ALIKE)):
            return f" (did you mean {names[near[0]]}?)"
    return ""


def _owners(argument: str) -> tuple[list[str], list[str]]:
    """Return the data sets and the models that take an argument."""
    data, models = (
        [name for name, cls in classes.items() if argument in constructor_arguments(cls)]
        for classes in (vit.data.DATA_SETS, OBJECTIVES)
    )
    return data, models


def _option_names(parser: ArgumentParser) -> set[str]:
    """Return all options of a parser and its subcommands, and the arguments of all models and data modules."""
    names = {"fit", "validate", "test", "predict"}
    for action in parser._actions:
        names |= {option.lstrip("-") for option in action.option_strings}
        choices = getattr(action, "choices", None)
        for subparser in choices.values() if isinstance(choices, dict) else ():
            names |= {option.lstrip("-") for part in subparser._actions for option in part.option_strings}
    data = [getattr(vit.data, name) for name in vit.data.__all__]
    models = [*OBJECTIVES.values(), VisionTransformer]
    for group, classes in (("data", data), ("model", models)):
        for argument in constructor_arguments(*classes):
            names |= {argument, f"{group}.{argument}"}
    return names


@contextmanager
def plain_output() -> Iterator[None]:
    """Hide the notices of the frameworks; print an error that vit or Lightning raised on purpose in one line.

    An error ends with status 2, Ctrl-C with 130 and SIGTERM with 143, as a shell reports them.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # its table
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # a toolkit of CUDA without a GPU
    try:
        with stoppable(), warnings.catch_warnings():
            for message, category in NOTICES:
                warnings.filterwarnings("ignore", message, category)
            written, warnings.formatwarning = warnings.formatwarning, _note
            try:
                yield
            finally:
                warnings.formatwarning = written
    except SIGTERMException:
        raise SystemExit(128 + signal.SIGTERM) from None
    except BrokenPipeError:  # the reader of the output is gone, which vit.support.interrupts handles
        raise
    except (MisconfigurationException, UnicodeDecodeError) as error:
        _end(_words(error))
    except torch.OutOfMemoryError as error:
        _end(f"{_first_line(error)}: {LESS_MEMORY}")
    except Exception as error:
        if (refusal := _refusal_of_logger(error)) is not None:
            _end(f"the logger refuses: {_first_line(refusal)}")
        if not isinstance(error, ValueError | OSError | TypeError | RuntimeError | ModuleNotFoundError):
            raise
        if found := re.search(r"(?:not enough memory|can't allocate memory)[^\n]*?(\d+) bytes", str(error)):
            _end(f"{int(found[1]) / 1e9:,.1f} GB more memory than there is: {LESS_MEMORY}")
        if isinstance(error, OSError) and error.errno in REMEDIES:  # about the user's disk, wherever it is raised
            _end(plain_message(error))
        if found := re.search(UNFIT, str(error), re.DOTALL):
            _end(f"{found[3]} takes {found[1]}, and the data gives {found[2]}: let it take both")
        if NO_COMPILER in str(error):
            _end("torch's compiler needs a C compiler, and none is there: install gcc, or add --model.compile false")
        if isinstance(error, RuntimeError) and re.search(LOST, str(error)):
            _end(f"another process of the training has ended ({_first_line(error)})")
        if (deliberate := _deliberate_cause(error)) is None:
            raise
        _end(_words(deliberate))


def _note(message: Warning | str, *_: Any, **__: Any) -> str:
    """Return a warning as a line, without the place in a library that it comes from."""
    return f"note: {' '.join(str(message).split())}\n"


def _words(error: BaseException) -> str:
    """Return the message of an error, with remedies for the command line: options, and how to install a package."""
    missing = r"Requirement '([\w-]+).*` *$"
    message = re.sub(missing, r"\1 is not installed: pip install \1", plain_message(error), flags=re.DOTALL)
    message = re.sub(r"Neither `tensorboard`.*", NO_TENSORBOARD, message, flags=re.DOTALL)
    message = re.sub(TOO_EARLY, NOT_YET, message, flags=re.DOTALL)
    return re.sub(CUT, CUT_BY_OPTIONS, message)


def _end(message: str) -> NoReturn:
    line = re.sub(r"<(?:\w+\.)*(\w+) object at 0x\w+>", r"\1", " ".join(message.split()))
    print(f"error: {printable(line)}", file=sys.stderr)
    raise SystemExit(2) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _deliberate_cause(error: BaseException | None) -> BaseException | None:
    """Return the first error that vit or Lightning raised on purpose, among this one and its causes."""
    while error is not None and not _is_deliberate(error):
        error = error.__cause__ or error.__context__
    return error


def _refusal_of_logger(error: BaseException | None) -> BaseException | None:
    """Return the error of a logger among this one and its causes: the parser wraps one that a constructor raises."""
    while error is not None and (_is_deliberate(error) or not _is_of_logger(error)):
        error = error.__cause__
    return error


def _is_of_logger(error: BaseException) -> bool:
    """Whether an error was raised inside the package of a logger, by a call of Lightning's."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    loggers = Path(lightning.__file__).parent / "pytorch" / "loggers"
    called = [place for place, file in enumerate(files) if loggers in file.parents]
    return bool(called) and not any(Path(vit.__file__).parent in file.parents for file in files[called[0] :])


def _is_deliberate(error: BaseException) -> bool:
    """Whether vit or Lightning raised an error by a ``raise``; a mistake in their code raises in other lines."""
    lines = traceback.extract_tb(error.__traceback__)
    folders = [Path(package.__file__).parent for package in (vit, lightning)]
    is_theirs = bool(lines) and any(folder in Path(lines[-1].filename).parents for folder in folders)
    return is_theirs and (isinstance(error, (ValueError, OSError)) or lines[-1].line.startswith("raise "))
