"""Trainings in separate processes: their output, their end, and how to stop them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event, Lock

import vit

TRAIN = (sys.executable, "-m", "vit", "fit")
PATIENCE = 30  # seconds that a stopped training has for its current step
PRINTING = Lock()


class TrainingError(Exception):
    """A training that failed; the message is one line."""


class Training:
    """A training that runs in a separate process.

    A signal that a terminal sends to this process, such as that of Ctrl-C, does not reach the training; call ``stop``.

    Args:
        name: Its name in errors.
        arguments: What follows ``python -m vit fit``.
        threads: Threads of the training; None is PyTorch's default.
    """

    def __init__(self, name: str, arguments: Sequence[str], threads: int | None = None) -> None:
        self.name = name
        self.is_stopped = False
        # The package of this process, wherever it was imported from.
        paths = [str(Path(vit.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        changed = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
        if threads is not None:
            changed["OMP_NUM_THREADS"] = str(threads)
        self.process = subprocess.Popen(
            [*TRAIN, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | changed,
            start_new_session=True,
        )

    def output(self) -> Iterator[str]:
        """Yield the lines that the training prints, until it ends.

        Raises:
            TrainingError: If the training fails; the message has the last line.
        """
        last = "no output"
        with self.process:
            for line in self.process.stdout:
                last = line.strip() or last
                yield line.rstrip()
        if status := self.process.returncode:
            raise TrainingError(f"{self.name} failed with exit status {status}: {last}")

    def stop(self, kill: bool = False) -> None:
        """Ask the training to stop after its current step; ``kill`` ends it at once."""
        self.is_stopped = True
        if self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()


def train_all(trainings: Mapping[str, Sequence[str]], parallel: int = 1, threads: int | None = None) -> Iterator[str]:
    """Train, print what the trainings print, and yield the name of each training as it ends.

    After a failure no further training starts. After Ctrl-C, or another exception in this thread, running trainings are
    stopped, too.

    Args:
        trainings: What follows ``python -m vit fit``, by the name of the training.
        parallel: Number of trainings at a time.
        threads: Threads of each; None is PyTorch's default.

    Raises:
        TrainingError: If a training fails.
    """
    running: list[Training] = []
    is_stopped = Event()

    def train(name: str) -> str:
        if not is_stopped.is_set():
            training = Training(name, trainings[name], threads)
            running.append(training)
            if is_stopped.is_set():
                training.stop()
            for line in training.output():
                if not training.is_stopped:  # a stopped one prints how to resume it alone
                    with PRINTING:
                        print(f"{name}: {line}", flush=True)
        return name

    with ThreadPoolExecutor(parallel) as pool:
        futures = [pool.submit(train, name) for name in trainings]
        try:
            for future in as_completed(futures):
                yield future.result()
        except TrainingError:
            is_stopped.set()  # running trainings go on to their end
            raise
        except BaseException:
            is_stopped.set()
            stop_all(running)
            raise


def stop_all(trainings: Sequence[Training]) -> None:
    """Stop trainings after their current step; kill all if one takes too long, and at a second Ctrl-C."""
    for training in trainings:
        training.stop()
    try:
        for training in trainings:
            training.process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for training in trainings:
            training.stop(kill=True)
