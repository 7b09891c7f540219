"""The training step of the ten-minute recipe, now and at an older commit, and where its time goes.

Each candidate is a process of its own, as the settings of memory belong to a process: it trains by the command line
and waits between rounds (training_step_worker.py). The older commit is extracted by git into a temporary folder. A cell
is a share of patches that is dropped; it is written to training_step.json and training_step.md.

    python benchmarks/training_step.py --data data/cifar10-jpeg [--against 976c2e5] [--rounds 9] [--steps 15]
        [--patch-drop 0.5 0] [--compiled] [--output benchmarks/results]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from records import command_line, comparison, provenance, write_cell
from side_by_side import compared, quartiles, speed, spread

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).parent / "training_step_worker.py"
RECIPE = "configs/cifar10_quick.yaml"
BATCH = 128
PARTS = ("data and callbacks", "forward", "backward", "optimiser")

REPORT = """# The training step of the ten-minute recipe

configs/cifar10_quick.yaml by the command line, every row in a process of its own; the processes take turns, and wait
while another one works. Compiling and warming up are not timed. Numbers are medians over the rounds, with quartiles; a
part is the median of its milliseconds a step. The optimiser's part has the clipping of the gradients.
"""


class Training:
    """A training in a process of its own, which makes steps when told to.

    Args:
        tree: Folder of the code.
        data: Folder of the images.
        options: Further options of ``fit``.
    """

    def __init__(self, tree: Path, data: Path, *options: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        fit = ["fit", "--config", str(tree / RECIPE), "--data", "ImageFolder", "--data.root", str(data.resolve())]
        endless = ["--trainer.max_time", "null", "--trainer.max_epochs", "10000", "--trainer.limit_val_batches", "0"]
        same = ["--trainer.enable_checkpointing", "false", "--model.patch_drop_until", "1.0"]
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), *fit, *endless, *same, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder.name,
            env=os.environ | {"PYTHONPATH": str(tree)},
        )

    def steps(self, count: int) -> dict[str, float]:
        """Make some steps, and return the seconds of each part of a step."""
        print(count, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("{"):
                return {part: seconds / count for part, seconds in json.loads(line).items()}
        raise ChildProcessError(f"the training ended with status {self.process.wait()} and not at the end of its steps")

    def end(self) -> None:
        """End the process."""
        self.process.communicate("\n")
        self.folder.cleanup()


def measure(trainings: dict[str, Training], rounds: int, steps: int, against: str) -> dict[str, Any]:
    """Return a row for each training: images per second, and the milliseconds of each part."""
    for training in trainings.values():
        training.steps(steps)  # warms up, and compiles
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in trainings}
    for turn in range(rounds):
        for name in trainings if turn % 2 == 0 else reversed(trainings):
            parts[name].append(trainings[name].steps(steps))
    times = {name: [sum(each.values()) for each in rows] for name, rows in parts.items()}
    rows = compared(times, BATCH, [against])
    for name, row in rows.items():
        row["ms"] = quartiles(1e3 * seconds for seconds in times[name])
        row["parts_ms"] = {part: 1e3 * statistics.median(each.get(part, 0.0) for each in parts[name]) for part in PARTS}
    return {"rounds": rounds, "steps": steps, "rows": rows}


def extract(commit: str, folder: Path) -> Path:
    """Extract the files of a commit into a folder, and return it."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, lambda cell: f"{cell['rounds']} rounds of {cell['steps']} steps.", _readable)


def _readable(training: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "training": training,
        "images per second": speed(row["images_per_second"]),
        "against the older commit": spread(row["against_best_peer"], ".2f"),
        "ms a step": spread(row["ms"], ".1f"),
        **{f"{part}, ms": f"{milliseconds:.1f}" for part, milliseconds in row["parts_ms"].items()},
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure cell by cell, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/ of CIFAR-10")
    parser.add_argument("--against", default="976c2e5", help="the older commit (default: 976c2e5)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each training")
    parser.add_argument("--steps", type=int, default=15, help="steps of a turn")
    parser.add_argument("--patch-drop", nargs="+", default=["0.5", "0"], help="shares of the patches that are dropped")
    parser.add_argument("--compiled", action="store_true", help="measure our compiled step, too")
    options = parser.parse_args(arguments)
    made, path = provenance(), options.output / "training_step.json"
    with tempfile.TemporaryDirectory() as folder:
        older = extract(options.against, Path(folder))
        for share in options.patch_drop:
            drop = ("--model.patch_drop", share)
            trainings = {
                options.against: Training(older, options.data, *drop, "--model.compile", "false"),
                "now": Training(ROOT, options.data, *drop, "--model.compile", "false"),
            }
            if options.compiled:
                trainings["now, compiled"] = Training(ROOT, options.data, *drop, "--model.compile", "true")
            cell = made | measure(trainings, options.rounds, options.steps, options.against)
            for training in trainings.values():
                training.end()
            write_cell(path, f"patch_drop {share}", cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
