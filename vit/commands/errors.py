"""Errors of a running training or evaluation: one line with the error and its remedy, without a traceback."""

import logging
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

import vit
from vit.support.files import REMEDIES, plain_message
from vit.support.interrupts import stoppable
from vit.support.printable import printable

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
LOST = r"(closed|reset) by peer|Broken pipe|NCCL|TCPStore|Connection was likely closed|connectFullMesh failed"
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
    except Exception as error:
        if (line := _line_of(error)) is None:
            raise
        line = re.sub(r"<(?:\w+\.)*(\w+) object at 0x\w+>", r"\1", " ".join(line.split()))
        print(f"error: {printable(line)}", file=sys.stderr)
        raise SystemExit(2) from None


def _line_of(error: Exception) -> str | None:
    """Return an error that a user can mend as a line with its remedy; None for a mistake in the code."""
    if isinstance(error, MisconfigurationException | UnicodeDecodeError):
        return _words(error)
    if isinstance(error, torch.OutOfMemoryError):
        return f"{_first_line(error)}: {LESS_MEMORY}"
    if (refusal := _refusal_of_logger(error)) is not None:
        return f"the logger refuses: {_first_line(refusal)}"
    if not isinstance(error, ValueError | OSError | TypeError | RuntimeError | ModuleNotFoundError):
        return None
    if found := re.search(r"(?:not enough memory|can't allocate memory)[^\n]*?(\d+) bytes", str(error)):
        return f"{int(found[1]) / 1e9:,.1f} GB more memory than there is: {LESS_MEMORY}"
    if isinstance(error, OSError) and error.errno in REMEDIES:  # about the user's disk, wherever it is raised
        return plain_message(error)
    if found := re.search(UNFIT, str(error), re.DOTALL):
        return f"{found[3]} takes {found[1]}, and the data gives {found[2]}: let it take both"
    if NO_COMPILER in str(error):
        return "torch's compiler needs a C compiler, and none is there: install gcc, or add --model.compile false"
    if isinstance(error, RuntimeError) and re.search(LOST, str(error)):
        return f"another process of the training has ended ({_first_line(error)})"
    deliberate = _deliberate_cause(error)
    return None if deliberate is None else _words(deliberate)


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
