"""Copies of the process of pytest, which have nothing to import: what a test kills, or what runs beside it."""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

# What commands import when they need it: here once, and not in each copy.
IMPORTED = ("attrs", "sklearn.datasets", "torch.distributed.algorithms.join", "torch.utils.tensorboard")


def forked(output: Path, function: Callable[..., Any], *arguments: Any) -> multiprocessing.Process:
    """Start a function in a copy of this process, which prints to a file and ends with the status of SystemExit."""
    Image.init()
    for name in IMPORTED:
        importlib.import_module(name)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(output, function, arguments))
    process.start()
    return process


def _run(output: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    # The copy's pool of threads is renewed when it is first asked for. Two threads of autograd that ask at once abort.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # else Lightning sets more threads, and the copy waits for those of the pool
    status = 0
    try:
        function(*arguments)
    except SystemExit as end:
        status = end.code or 0
    os._exit(status)
