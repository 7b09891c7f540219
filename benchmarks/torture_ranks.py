"""Trainings in several processes, of which one is killed at random moments, against a training that was not disturbed.

After a kill, the other processes must end without a traceback, and all start again, as torchrun starts them, by one
command with ``--ckpt_path auto``. At the end, weights and scores of two processes must be those of the undisturbed
training, to the last bit, and each epoch must have trained on every image once. With more processes, the order in which
gradients are summed depends on the buckets of DDP, which a start arranges anew: weights are equal to rounding. The
images are read from a folder before the training, and from tar shards, which workers of each process stream.

    python benchmarks/torture_ranks.py [--kills 10] [--processes 2 4] [--seed 0] [--output benchmarks/results]
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer
from PIL import Image
from records import command_line, made_at, origin, write_results
from sklearn.datasets import load_digits
from torture import KILLED, SIGNALS, Job, assert_same_results, assert_same_weights, disturb, finished, run

from vit.commands import shards

# No image changes, so that each can be told; 12 batches an epoch.
RECIPE = [
    *("--model.dropout", "0.1", "--model.drop_path", "0.2", "--model.patch_size", "4"),
    *("--model.embed_dim", "8", "--model.depth", "2", "--model.num_heads", "2"),
    *("--model.ema_decay", "0.9", "--trainer.accelerator", "cpu", "--trainer.precision", "32-true"),
    *("--trainer.max_epochs", "10", "--trainer.callbacks+", "torture_ranks.SeenImages"),
    *("--experiment", "torture", "--ckpt_path", "auto"),
]
DATA = {
    "folder": ["--data", "ImageFolder", "--data.root", "digits"],
    "shards": [
        *("--data", "Shards", "--data.num_workers", "1", "--data.urls", "shards/train-{000000..000006}.tar"),
        *("--data.val_urls", "shards/val-{000000..000001}.tar", "--data.test_urls", "shards/test-{000000..000001}.tar"),
    ],
}
PER_SHARD = 37  # images
COUNTS = {"train": 240, "val": 40, "test": 40}  # images of the training in several processes
ROUNDING = 1e-4  # of weights after 120 steps
BATCH = 20  # images of all processes together
PATIENCE = 300  # seconds in which the other processes must end after one was killed, on a machine with other work


@dataclass
class Ranks(Job):
    """A training in several processes, which are started as torchrun starts them: all again after one was killed."""

    number: int = 2
    chance: random.Random = field(default_factory=random.Random)
    processes: list[multiprocessing.Process] = field(default_factory=list)

    def start(self) -> None:
        """Start the processes."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        context, count = multiprocessing.get_context("fork"), str(self.number)
        self.processes = []
        for rank in map(str, range(self.number)):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            environment = place | ranks | {"TORCHELASTIC_RUN_ID": "none"}
            self.processes.append(context.Process(target=run, args=(self.folder, self.command(), environment)))
            self.processes[-1].start()
        self.process = self.processes[0]

    def kill(self, number: signal.Signals) -> None:
        """Kill one of the processes if it still runs, let the others end, and start all again."""
        killed = self.chance.choice(self.processes)
        if killed.is_alive():
            os.kill(killed.pid, number)
        killed.join(PATIENCE)
        assert killed.exitcode is not None, "a process did not end at its signal"
        others = [process for process in self.processes if process is not killed]
        for process in others:
            if killed.exitcode and process.is_alive():
                process.terminate()
            process.join(PATIENCE)
            assert process.exitcode is not None, "a process did not notice that another one was killed"
        if killed.exitcode in KILLED:
            self.kills[number.name] += 1
            self.start()

    def finish(self) -> None:
        """Wait for the end.

        Raises:
            AssertionError: If a process failed, or printed a traceback.
        """
        for process in self.processes:
            process.join()
        output = (self.folder / "output.txt").read_text()
        assert not any(process.exitcode for process in self.processes), output[-2000:]
        assert "Traceback" not in output, output


class SeenImages(Callback):
    """Append a line for each batch of a process: epoch, number of the batch and a checksum of each image."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: tuple, batch_idx: int) -> None:
        """Write the line at once: a process can be killed between any two."""
        images = [zlib.crc32(image.numpy().tobytes()) for image in batch[0]]
        with Path(f"seen_{trainer.global_rank}.txt").open("ab", buffering=0) as file:
            file.write(f"{json.dumps([trainer.current_epoch, batch_idx, images])}\n".encode())


def seen_images(folder: Path) -> dict[int, Counter]:
    """Return how often each image was trained on in each epoch; of a step that was done again, the last time counts."""
    batches: dict[tuple[int, int, str], list[int]] = {}
    for path in folder.glob("seen_*.txt"):
        for epoch, number, images in map(json.loads, path.read_text().splitlines()):
            batches[epoch, number, path.name] = images
    epochs: dict[int, Counter] = {}
    for (epoch, *_), images in batches.items():
        epochs.setdefault(epoch, Counter()).update(images)
    return epochs


def write_digits(folder: Path) -> None:
    """Write pictures of digits for a training, no two of them alike."""
    digits = load_digits()
    images, first = (digits.images * 255 / 16).astype("uint8"), 0
    for split, count in COUNTS.items():
        for number in range(first, first + count):
            place = folder / "digits" / split / str(digits.target[number])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).save(place / f"{number}.png")
        first += count


def write_shards(folder: Path) -> None:
    """Write the pictures of ``write_digits`` as shards, too."""
    shards.main([str(folder / "digits"), str(folder / "shards"), "--per_shard", str(PER_SHARD), "--workers", "0"])


def train(
    folder: Path, data: str, number: int, kills: int, longest: float, chance: random.Random
) -> tuple[Counter, float]:
    """Train in several processes, which are killed; return the signals that were sent, and the seconds.

    Raises:
        AssertionError: If an epoch did not train on every image once.
    """
    folder.mkdir(parents=True)
    write_digits(folder)
    if data == "shards":
        write_shards(folder)
    command = ["fit", *RECIPE, *DATA[data], "--data.batch_size", str(BATCH // number)]
    job, start = Ranks(folder, lambda: command, number=number, chance=chance), time.monotonic()
    disturb([job], kills, longest, chance)
    epochs = seen_images(folder)
    assert len(epochs) == 10
    for images in epochs.values():
        assert len(images) == COUNTS["train"]
        assert set(images.values()) == {1}
    return job.kills, time.monotonic() - start


def assert_close_weights(one: Path, other: Path) -> None:
    """Check that the last checkpoints of two runs hold the same weights, to the rounding of their sums.

    The bias of keys is left out: its gradient is zero but for rounding, of which Adam makes whole steps.

    Raises:
        AssertionError: If a tensor differs by more.
    """
    first, second = (torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, other))
    for name in (name for name in first if name.endswith("qkv.bias")):
        for weights in (first, second):
            weights[name].chunk(3)[1].zero_()
    torch.testing.assert_close(first, second, rtol=0, atol=ROUNDING)


def torture(folder: Path, data: str, number: int, kills: int, seed: int, kills_a_round: int = 5) -> dict:
    """Kill processes of trainings in several of them on a kind of data, below a folder; return what was done.

    Raises:
        AssertionError: At the first difference from the undisturbed run.
    """
    chance = random.Random(seed)
    _, seconds = train(folder / "undisturbed", data, number, 0, 0.0, chance)
    sent: Counter = Counter()
    rounds = 0
    while sent[signal.SIGKILL.name] < kills:
        disturbed = folder / f"round_{rounds}"
        sent += train(disturbed, data, number, kills_a_round, seconds, chance)[0]
        one, other = (finished(place, seed=0) for place in (disturbed, folder / "undisturbed"))
        if number == 2:
            assert_same_weights(one, other)
            assert_same_results(one, other)
        else:
            assert_close_weights(one, other)
        shutil.rmtree(disturbed)
        rounds += 1
    return {"data": data, "processes": number, "kills": dict(sent), "rounds": rounds}


def report(result: dict) -> str:
    """Return the result as Markdown."""
    names = [signal.name for signal in SIGNALS]
    rows = []
    for each in result["trainings"]:
        kills = " | ".join(str(each["kills"].get(name, 0)) for name in names)
        rows.append(f"| {each['data']} | {each['processes']} | {kills} | {each['rounds']} |")
    table = "\n".join([f"| data | processes | {' | '.join(names)} | trainings |", "|:--|--:|--:|--:|--:|", *rows])
    end = (
        "All ended with the weights of the undisturbed trainings, those of two processes to the last bit; every epoch "
        "trained on every image once."
    )
    return f"# Killed processes of a training\n\n{table}\n\n{end}\n\n{made_at(result['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Torture trainings in a temporary folder, and write ``torture_ranks.json`` and ``torture_ranks.md``."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--kills", type=int, default=10, help="SIGKILLs to send for each number, beside SIGTERMs (default: 10)"
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], help="their numbers (default: 2 4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and the signals (default: 0)")
    options = parser.parse_args(arguments)
    made = origin()
    sys.argv = ["train.py"]  # of the trainings
    with tempfile.TemporaryDirectory() as folder:
        trainings = [
            torture(Path(folder) / data / str(number), data, number, options.kills, options.seed)
            for data in DATA
            for number in options.processes
        ]
    result = {"made": made, "trainings": trainings, "seed": options.seed}
    write_results(options.output / "torture_ranks.json", result, report)


if __name__ == "__main__":
    main()
