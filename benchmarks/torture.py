"""Runs that are killed at random moments, and resumed until they end, against runs that were not disturbed.

In each round, two trainings of one experiment run side by side on one cache, then a test and a prediction. Each is
killed by SIGKILL or SIGTERM after a random time, and started again by the command that a user would type. At the end of
a round, weights, accuracies and predictions must be those of the undisturbed runs to the last bit, and each folder the
record of one run. Last, a disk fills up in the middle of a training (a small tmpfs, which only root can mount).

    python benchmarks/torture.py [--kills 100] [--seed 0] [--output benchmarks/results]
"""

import csv
import json
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image
from records import command_line, made_at, origin, write_results
from training_runs import TRAIN

import vit.training  # noqa: F401  before the first copy of this process, so that none has to

# Every source of randomness, an average beside the weights, and a checkpoint each epoch.
RECIPE = [
    *("--data", "Digits", "--data.batch_size", "100", "--data.crop_padding", "1", "--data.erasing", "0.5"),
    *("--data.mixup", "0.5", "--data.cutmix", "1", "--data.policy", "trivialaugment"),
    *("--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "2", "--model.num_heads", "2"),
    *("--model.dropout", "0.1", "--model.drop_path", "0.2", "--model.ema_decay", "0.9"),
    *("--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--trainer.max_epochs", "4"),
    *("--experiment", "torture"),
]
SEEDS = (0, 1)  # of the two trainings side by side
IMAGES = 60  # of the prediction
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
KILLED = {-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM}  # exit codes


def run(folder: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command of train.py in this process, and end it with the exit status; output goes to ``output.txt``."""
    os.chdir(folder)
    os.environ |= {"XDG_CACHE_HOME": str(folder / "cache")} | (environment or {})
    rank_zero_only.rank = int(os.environ.get("RANK", 0))  # which Lightning read when it was imported
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    status = 0
    try:
        runpy.run_path(str(TRAIN))["main"](arguments)
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
    os._exit(status)


@dataclass
class Job:
    """A command that is started again after each kill, until it ends by itself."""

    folder: Path
    command: Callable[[], list[str]]
    is_complete: Callable[[], bool] = lambda: False  # although it was killed
    kills: Counter = field(default_factory=Counter)
    process: multiprocessing.Process | None = None

    def start(self) -> None:
        """Start the command, in a copy of this process: nothing has to be imported again."""
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=run, args=(self.folder, self.command()))
        self.process.start()

    def kill(self, number: signal.Signals) -> None:
        """Kill the command if it still runs, and start it again."""
        os.kill(self.process.pid, number)
        self.process.join()
        if self.process.exitcode in KILLED:
            self.kills[number.name] += 1
            if not self.is_complete():
                self.start()

    def finish(self) -> None:
        """Wait for the end.

        Raises:
            AssertionError: If the command failed.
        """
        self.process.join()
        assert self.process.exitcode == 0 or self.is_complete(), (self.folder / "output.txt").read_text()[-2000:]


def disturb(jobs: list[Job], kills: int, longest: float, chance: random.Random) -> None:
    """Run jobs side by side, kill them ``kills`` times, each after at most ``longest`` seconds, and let them end."""
    for job in jobs:
        job.start()
    for _ in range(kills):
        time.sleep(chance.uniform(0, longest))
        running = [job for job in jobs if job.process.is_alive()]
        if not running:
            break
        chance.choice(running).kill(chance.choice(SIGNALS))
    for job in jobs:
        job.finish()


def runs_of(folder: Path, seed: int) -> list[Path]:
    """Return the run folders with a config of this seed, oldest first."""
    folders = sorted((folder / "runs/torture").glob("version_*"), key=lambda path: int(path.name.split("_")[1]))
    configs = {path: path / "config.yaml" for path in folders}
    return [path for path, config in configs.items() if config.exists() and _seed(config) == seed]


def _seed(config: Path) -> int:
    return yaml.safe_load(config.read_text())["seed_everything"]


def fit(folder: Path, seed: int) -> list[str]:
    """Return the command that starts the training of a seed, or resumes it from its newest checkpoint."""
    checkpoints = [path / "checkpoints/last.ckpt" for path in runs_of(folder, seed)]
    newest = next((path for path in reversed(checkpoints) if path.exists()), None)
    if newest is None:
        return ["fit", *RECIPE, "--seed_everything", str(seed)]
    return ["fit", "--ckpt_path", str(newest.relative_to(folder))]


def complete_run(folder: Path, seed: int) -> Path:
    """Return the folder of the finished run of a seed. A killed test may have left parts of files in it."""
    (complete,) = [path for path in runs_of(folder, seed) if _results(path).get("finished")]
    return complete


def finished(folder: Path, seed: int) -> Path:
    """Return the folder of the finished run of a seed, after a check that it is the record of one run.

    Raises:
        AssertionError: If there is none, or parts of its record are those of other runs.
    """
    complete = complete_run(folder, seed)
    results = _results(complete)
    assert results["seed"] == seed
    for name in ("last", "best"):
        assert (complete / f"checkpoints/{name}.ckpt").exists()
    assert not [*complete.rglob("*.unfinished")]
    return complete


def _results(run_folder: Path) -> dict:
    path = run_folder / "results.json"
    return json.loads(path.read_text()) if path.exists() else {}


def assert_same_weights(one: Path, other: Path) -> None:
    """Check that the last checkpoints of two runs hold the same bits.

    Raises:
        AssertionError: If a tensor differs.
    """
    paths = [folder / "checkpoints/last.ckpt" for folder in (one, other)]
    checkpoints = [torch.load(path, weights_only=True) for path in paths]
    for part in ("state_dict", "training_weights"):
        first, second = (checkpoint[part] for checkpoint in checkpoints)
        assert first.keys() == second.keys()
        different = [name for name in first if not torch.equal(first[name], second[name])]
        assert not different, f"{one} and {other} differ in {different}"


def assert_same_results(one: Path, other: Path) -> None:
    """Check that two runs have the same scores, after as many steps.

    Raises:
        AssertionError: If one differs.
    """
    for name in ("test_accuracy", "val_accuracy", "steps", "epochs", "scores"):
        assert _results(one)[name] == _results(other)[name], name


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of predictions."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def evaluate(folder: Path, kind: str) -> list[str]:
    """Return the command that tests the training of the first seed, or predicts with it."""
    checkpoint = str((complete_run(folder, SEEDS[0]) / "checkpoints/last.ckpt").relative_to(folder))
    read = [kind, "--ckpt_path", checkpoint, "--trainer.accelerator", "cpu", "--data.batch_size", "7"]
    return read if kind == "test" else [*read, "--data.root", "images", "--output", "predictions.csv"]


def round_of(folder: Path, kills: int, longest: list[float], chance: random.Random) -> tuple[Counter, list[float]]:
    """Train two seeds side by side, then test and predict; return the signals that were sent, and the seconds of each.

    ``kills`` are shared out: half to the trainings, a quarter each to the test and to the prediction. ``longest`` are
    the seconds before a kill in each of the three.
    """
    (folder / "images").mkdir(parents=True)
    for number in range(IMAGES):
        Image.new("L", (8, 8), 4 * number).save(folder / f"images/{number:02}.png")
    phases = [[Job(folder, lambda seed=seed: fit(folder, seed)) for seed in SEEDS]]
    phases += [[Job(folder, lambda: evaluate(folder, "test"))]]
    phases += [[Job(folder, lambda: evaluate(folder, "predict"), (folder / "predictions.csv").exists)]]
    seconds = []
    for jobs, share, limit in zip(phases, (kills - 2 * (kills // 4), kills // 4, kills // 4), longest, strict=True):
        start = time.monotonic()
        disturb(jobs, share, limit, chance)
        seconds.append(time.monotonic() - start)
    return sum((job.kills for jobs in phases for job in jobs), Counter()), seconds


def compare(disturbed: Path, undisturbed: Path) -> None:
    """Check that a folder of disturbed runs holds what one of undisturbed runs does.

    Raises:
        AssertionError: If weights, accuracies or predictions differ.
    """
    for seed in SEEDS:
        one, other = (finished(folder, seed) for folder in (disturbed, undisturbed))
        assert_same_weights(one, other)
        assert_same_results(one, other)
    tests = [next(finished(folder, SEEDS[0]).glob("evaluations/*/results.json")) for folder in (disturbed, undisturbed)]
    accuracies = {json.loads(path.read_text())["test_accuracy"] for path in tests}
    assert accuracies == {_results(finished(undisturbed, SEEDS[0]))["test_accuracy"]}
    assert rows(disturbed / "predictions.csv") == rows(undisturbed / "predictions.csv")


@contextmanager
def small_disk(folder: Path, megabytes: int):
    """Mount a disk of this size at a folder; yields False where that is not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder: Path, undisturbed: Path) -> bool:
    """Fill a disk up while a training runs, free it, resume; return False where no disk can be mounted.

    Raises:
        AssertionError: If the run did not end with status 2, or the resumed one has other weights.
    """
    with small_disk(folder, megabytes=8) as is_mounted:
        if not is_mounted:
            return False
        ballast, job = folder / "ballast", Job(folder, lambda: fit(folder, SEEDS[0]))
        with ballast.open("wb", buffering=0) as file:
            job.start()
            while not [*folder.glob("runs/torture/version_0/checkpoints/last.ckpt")]:
                assert job.process.is_alive(), (folder / "output.txt").read_text()
                time.sleep(0.01)
            while job.process.is_alive():
                try:
                    file.write(b"0" * 4096)
                except OSError:
                    time.sleep(0.01)
        assert job.process.exitcode == 2, (folder / "output.txt").read_text()
        ballast.unlink()
        job.start()
        job.finish()
        assert_same_weights(finished(folder, SEEDS[0]), finished(undisturbed, SEEDS[0]))
    return True


def torture(folder: Path, kills: int, seed: int, kills_a_round: int = 12) -> dict:
    """Kill runs ``kills`` times in all, below a folder; return what was done.

    Raises:
        AssertionError: At the first difference from the undisturbed runs.
    """
    chance = random.Random(seed)
    _, longest = round_of(folder / "undisturbed", 0, [0.0, 0.0, 0.0], chance)
    sent: Counter = Counter()
    rounds = 0
    while sum(sent.values()) < kills:
        disturbed = folder / f"round_{rounds}"
        sent += round_of(disturbed, kills_a_round, longest, chance)[0]
        compare(disturbed, folder / "undisturbed")
        rounds += 1
    is_filled = fill_up(folder / "full", folder / "undisturbed")
    return {"kills": dict(sent), "rounds": rounds, "full_disk": is_filled, "seed": seed}


def report(result: dict) -> str:
    """Return the result as Markdown."""
    kills = " and ".join(f"{count} {name}" for name, count in sorted(result["kills"].items()))
    disk = "A disk filled up and was freed." if result["full_disk"] else "No disk could be mounted to fill it up."
    rounds = f"{result['rounds']} rounds of two trainings side by side, a test and a prediction"
    end = "All ended with the bits of the undisturbed runs."
    return f"# Killed runs\n\n{kills} in {rounds}. {disk} {end}\n\n{made_at(result['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Torture runs in a temporary folder, and write ``torture.json`` and ``torture.md``."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="signals to send (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and the signals (default: 0)")
    options = parser.parse_args(arguments)
    made = origin()
    sys.argv = ["train.py"]  # of the runs
    with tempfile.TemporaryDirectory() as folder:
        result = torture(Path(folder), options.kills, options.seed)
    write_results(options.output / "torture.json", {"made": made} | result, report)


if __name__ == "__main__":
    main()
