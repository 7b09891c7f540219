"""Measures the stated numbers again, part by part; a part that is current is left out.

Everything is made below runs/reproduce/COMMIT first: trainings, results and a list of the commands that are done. The
same command goes on after an interrupt: finished trainings are kept, an unfinished one continues from its checkpoint,
and scripts skip the cells that they have written. When a part is whole, its results replace those of the repository,
with their fingerprint, and the pages are written. parts.py has the table of parts.

    python benchmarks/reproduce.py [PART ...] [--list] [--dry_run] [--data data/cifar10-jpeg]
"""

import argparse
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fingerprint
from parts import PARTS, Part, part_of
from records import RESULTS, commit, write_json

from vit.support.markdown import markdown_table

ROOT = Path(__file__).parents[1]


class Workplace:
    """The folder of what is measured at one commit: results, trainings and the list of finished commands.

    Args:
        folder: The folder.
        data: Folder of the images of CIFAR-10.
    """

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, data
        self.results, self.list = folder / "results", folder / "done.json"

    @property
    def done(self) -> list[str]:
        """Commands that have ended well."""
        return json.loads(self.list.read_text()) if self.list.exists() else []

    def run(self, name: str, part: Part, at: str) -> None:
        """Measure a part, and put its results into the repository.

        Raises:
            ValueError: If a command fails.
        """
        self._prepare(name, part, at)
        for training in part.trains:
            words = self.training(training)
            if words is not None:
                self._call(words)
        for command in part.commands:
            words = self.command(command)
            if shlex.join(words) not in self.done:
                self._call(words)
                write_json(self.list, [*self.done, shlex.join(words)])
        # Not every file that begins so: attention_images.json may be half of another part.
        for pattern in (f"{part.file}.*", f"{part.file}*.png"):
            for path in self.results.glob(pattern):
                shutil.copy(path, RESULTS)

    def _prepare(self, name: str, part: Part, at: str) -> None:
        """Begin with the results of the repository, without those of the part that are of another commit."""
        path = self.results / f"{part.file}.json"
        source = path if path.exists() else RESULTS / path.name
        results = json.loads(source.read_text()) if source.exists() else {}
        older = [
            cell
            for cell, _, origin in fingerprint.records_of(results)
            if part_of(part.file, cell) == name and origin.get("commit") != at
        ]
        # A file that is measured in one go has one result without a name.
        write_json(path, {} if "" in older else {cell: kept for cell, kept in results.items() if cell not in older})

    def _call(self, words: list[str]) -> None:
        print(f"$ {shlex.join(words)}", flush=True)
        if status := subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=False).returncode:
            raise ValueError(f"{shlex.join(words)} ended with status {status}: the same command goes on from here")

    def command(self, command: str) -> list[str]:
        """Return the words of a command, with checkpoints in place of the names of trainings."""
        words = []
        for word in shlex.split(command):
            if word.startswith("{last:"):
                words += self.checkpoints(word.removeprefix("{last:").removesuffix("}"))
            else:
                words.append(word.replace("{data}", self.data))
        own = words.index("--") if "--" in words else len(words)
        return ["python", f"benchmarks/{words[0]}", *words[1:own], "--output", str(self.results), *words[own:]]

    def training(self, words: str) -> list[str] | None:
        """Return the command of a training, which continues an unfinished one; None if it has ended."""
        typed = self.command(f"train.py {words}")[2:-2]
        chosen = dict(itertools.pairwise(typed))
        experiment = chosen.get("--experiment", Path(chosen["--config"]).stem)
        start = []
        for run, facts in self.runs(experiment):
            if facts.get("seed") == int(chosen.get("--seed_everything", 0)):
                if facts.get("finished"):
                    return None
                if (run / "checkpoints/last.ckpt").exists():
                    start = ["--ckpt_path", str(run / "checkpoints/last.ckpt")]
        return ["python", "train.py", "fit", *typed, "--trainer.default_root_dir", str(self.folder), *start]

    def checkpoints(self, experiment: str) -> list[str]:
        """Return the last checkpoints of the finished trainings of an experiment, or their pattern before these."""
        found = [str(run / "checkpoints/last.ckpt") for run, facts in self.runs(experiment) if facts.get("finished")]
        return found or [str(self.folder / "runs" / experiment / "*/checkpoints/last.ckpt")]

    def runs(self, experiment: str) -> Iterator[tuple[Path, dict]]:
        """Yield the folders of the runs of an experiment, and their results."""
        for path in sorted((self.folder / "runs" / experiment).glob("*/results.json")):
            yield path.parent, json.loads(path.read_text())


def state_of(name: str) -> tuple[int, str]:
    """Return the number of results of a part, and their state, in words."""
    path = RESULTS / f"{PARTS[name].file}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    found = [state for part, _, _, state in fingerprint.states(results, path.stem) if part == name]
    if not found:
        return 0, "not measured"
    return len(found), "; ".join(dict.fromkeys(state for state in found if state != "current")) or "current"


def listed(names: list[str]) -> str:
    """Return parts with their state and minutes as Markdown."""
    rows = []
    for name in names:
        count, state = state_of(name)
        part = PARTS[name]
        row = {"part": name, "measures": part.measures, "minutes": str(part.minutes), "results": str(count)}
        rows.append(row | {"state": state})
    return markdown_table(rows, right={"minutes", "results"})


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts that are not current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"(default: all) {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="only list the parts, with their state and minutes")
    parser.add_argument("--dry_run", action="store_true", help="only print the commands")
    parser.add_argument(
        "--data", default="data/cifar10-jpeg", help="folder of CIFAR-10's images (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    names = options.parts or [*PARTS]
    if options.list:
        print("training small models to see what is out of date: a minute or two", file=sys.stderr)
        print(listed(names))
        return
    at = commit()
    if not options.dry_run and (not at or at.endswith("-dirty")):
        parser.error(f"the commit is {at!r}, and results must name what they measured: commit all changes first")
    workplace = Workplace(Path("runs/reproduce") / (at or "COMMIT"), options.data)
    for name in names:
        part = PARTS[name]
        if state_of(name)[1] == "current":
            print(f"{name}: current")
        elif options.dry_run:
            print(f"{name}, about {part.minutes} minutes:")
            steps = [workplace.training(words) for words in part.trains] + [*map(workplace.command, part.commands)]
            print("\n".join(f"    {shlex.join(step)}" for step in steps if step is not None))
        else:
            measure(name, part, workplace, at)


def measure(name: str, part: Part, workplace: Workplace, at: str) -> None:
    """Measure a part, add its fingerprint, and write the pages."""
    try:
        workplace.run(name, part, at)
    except ValueError as error:
        raise SystemExit(f"error: {name}: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        fingerprint.write(RESULTS / f"{part.file}.json", fingerprint.Commits(Path(folder)))
    for page in ("results_page.py", "pages.py"):
        subprocess.run([sys.executable, f"benchmarks/{page}"], cwd=ROOT, check=True)


if __name__ == "__main__":
    os.chdir(ROOT)  # folders and commands are those of the repository
    main()
