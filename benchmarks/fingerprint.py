"""Which results are out of date: each carries a fingerprint of what it was measured with, which is computed anew.

The fingerprint of a training is its first losses on fixed images (first_losses.py), that of a speed the operations of a
pass (traced_operations.py), that of an evaluation of maps its numbers on small models (map_scores.py), and that of
another measurement a hash of the files and functions that it is about, without comments and docstrings (sources.py).
parts.py says which. A result is

- current, if all are as they were when it was measured;
- out of date, if one differs: the JSON says so under "stale", and the pages beside the number;
- without a fingerprint, if its commit is not known or had other files.

With --write, results get the fingerprint of the commit that they name, computed in the files of that commit, and what
differs is marked as stale. Run results_page.py and pages.py afterwards.

    python benchmarks/fingerprint.py [--write]
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import sources
from map_scores import map_scores
from parts import PARTS, Part, part_of
from records import RESULTS, write_json
from traced_operations import operations_of

from vit.support.markdown import markdown_table

ROOT = Path(__file__).parents[1]
LOSSES, OPERATIONS, MAPS = (
    Path(__file__).with_name(f"{name}.py") for name in ("first_losses", "traced_operations", "map_scores")
)
TOLERANCE = 1e-5  # relative
NOTHING = 1e-8  # what a number that is zero may have of rounding

# Many results are about the same files and passes.
hash_of = cache(sources.hash_of)
operations_now = cache(operations_of)
map_scores_now = cache(map_scores)

Record = dict[str, Any]
First = dict[str, Any] | None  # what first_losses.py finds; None where a training cannot be built


def records_of(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Record]]:
    """Yield the name, the cell and the origin of each result of a file: what has its commit."""
    if "made" in results:
        yield "", results, results["made"]
    elif "command" in results:
        yield "", results, results
    else:
        for name, cell in results.items():
            if "note" not in cell:  # a part that was removed keeps the commit that has it
                yield name, cell, cell.get("made", cell)


def state(part: Part, cell: dict[str, Any], origin: Record) -> str:
    """Return "current", "no fingerprint", or what differs from the result's fingerprint."""
    found = origin.get("fingerprint")
    if found is None:
        return "no fingerprint"
    differing = [
        f"{pattern} has changed" for pattern, said in found["sources"].items() if said != hash_of(ROOT, pattern)
    ]
    for line, before in found["trainings"].items():
        now = first_now(line)
        if now is None:
            differing.append(f"{line} cannot be trained any more")
        elif not close(before["losses"], now["losses"]):
            differing.append(f"the first losses of {line} differ")
        differing += [] if now is None else changed(line, before["settings"], now["settings"])
    differing += [
        f"the operations of {name} have changed"
        for name, said in found.get("operations", {}).items()
        if said != operations_now(name)
    ]
    differing += [
        f"the {', the '.join(rows)} of the small model {name} changed"
        for name, said in found.get("map_scores", {}).items()
        if (rows := changed_rows(said, map_scores_now(name)))
    ]
    return (
        "; ".join([*differing, *(f"the fingerprint has no {name}" for name in lacking(part, cell, found))]) or "current"
    )


def lacking(part: Part, cell: dict[str, Any], found: Record) -> list[str]:
    """Return what the fingerprint of a result lacks: trainings, files, passes and models that its part names."""
    trainings = {training_of(part, cell)} - {None}
    wanted = {"trainings": trainings, "sources": part.sources, "operations": part.operations}
    wanted["map_scores"] = part.map_scores
    return [name for kind, names in wanted.items() for name in names if name not in found.get(kind, {})]


def training_of(part: Part, cell: dict[str, Any]) -> str | None:
    """Return the training that a cell is about, in a line; None if it is about none."""
    return None if part.training is None else part.training(cell)


def changed(line: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return which settings of a training differ, in words.

    >>> changed("--config a.yaml", {"max_epochs": 30}, {"max_epochs": 40})
    ['max_epochs of --config a.yaml is 40, and was 30']
    """
    names = [name for name in before | now if before.get(name) != now.get(name)]
    return [f"{name} of {line} is {now.get(name)}, and was {before.get(name)}" for name in names]


def close(before: list[float], now: list[float]) -> bool:
    """Return whether losses are the same, as far as machines agree.

    >>> close([2.3, 2.1], [2.300001, 2.1]), close([2.3, 2.1], [2.3001, 2.1])
    (True, False)
    """
    return len(before) == len(now) and all(map(is_close, before, now))


def is_close(one: float, other: float) -> bool:
    """Return whether two numbers are the same, as far as machines agree."""
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=NOTHING)


def changed_rows(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return the maps and rows of tables whose number has changed; rows that were added change no other.

    >>> changed_rows({"map of rollout": 0.5, "flow of rollout": 1.0}, {"map of rollout": 0.6, "map of new": 0.1})
    ['map of rollout', 'flow of rollout']
    """
    return [row for row, number in before.items() if row not in now or not is_close(number, now[row])]


@cache
def first_now(line: str) -> First:
    """Return the first losses of a training in this tree, and its settings; None where it cannot be built."""
    sys.path.append(str(ROOT))  # of train.py
    from first_losses import first_losses  # imports Lightning, which takes seconds

    try:
        with chdir(ROOT):  # the line names configs/NAME.yaml
            return first_losses(shlex.split(line))
    except (SystemExit, ValueError, OSError):
        return None


@cache
def first_at(tree: Path, line: str) -> First:
    """Return the first losses of a training in the files of another commit; None where they cannot be computed."""
    found = printed_in(tree, LOSSES, [shlex.split(line)])
    return None if found is None else found[0]


@cache
def operations_at(tree: Path, name: str) -> str | None:
    """Return the operations of a pass in the files of another commit; None where it cannot be traced."""
    found = printed_in(tree, OPERATIONS, [name])
    return None if found is None else found[name]


@cache
def map_scores_at(tree: Path, name: str) -> dict[str, float] | None:
    """Return the numbers of maps in the files of another commit; None where they cannot be computed."""
    found = printed_in(tree, MAPS, [name])
    return None if found is None else found[name]


def printed_in(tree: Path, worker: Path, asked: list[Any]) -> Any:
    """Return what a worker prints in the files of another commit, read as JSON; None if it fails."""
    command = [sys.executable, "-P", str(worker), json.dumps(asked)]
    places = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "benchmarks")))}
    done = subprocess.run(command, cwd=tree, env=places, capture_output=True, text=True, check=False)
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


class Commits:
    """The files of commits, each extracted once into a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tree(self, commit: str | None) -> Path | None:
        """Return the files of a commit; None if it is not known, or other files were measured."""
        if not commit or commit.endswith("-dirty"):
            return None
        tree = self.folder / commit
        if not tree.exists():
            packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
            if packed.returncode:
                return None
            with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
                archive.extractall(tree, filter="data")
        return tree


def fingerprint(part: Part, cell: dict[str, Any], origin: Record, commits: Commits) -> Record | None:
    """Return the fingerprint of a result at the commit that it names; None where it cannot be computed.

    A training that was over before the measurement has a commit of its own, which results did not keep at first.
    """
    tree, line = commits.tree(origin.get("commit")), training_of(part, cell)
    was_over = part.trains and not cell.get("command", "").startswith("python train.py")
    trained = commits.tree(cell.get("training", {}).get("commit")) if was_over else tree
    if tree is None or (line is not None and trained is None):
        return None
    trainings = {} if line is None else {line: first_at(trained, line)}
    sources = {pattern: hash_of(tree, pattern) for pattern in part.sources}
    operations = {name: operations_at(tree, name) for name in part.operations}
    numbers = {name: map_scores_at(tree, name) for name in part.map_scores}
    if None in (*trainings.values(), *operations.values(), *numbers.values()):
        return None
    return {"trainings": trainings, "sources": sources, "operations": operations, "map_scores": numbers}


def states(results: dict[str, Any], file: str) -> Iterator[tuple[str, str, Record, str]]:
    """Yield part, name, origin and state of each result of a file that belongs to a part."""
    for name, cell, origin in records_of(results):
        part = part_of(file, name)
        if part is not None:
            yield part, name, origin, state(PARTS[part], cell, origin)


def write(path: Path, commits: Commits) -> None:
    """Add the fingerprints that a file of results lacks, and mark what is out of date, with the reason.

    A fingerprint that lacks something is made anew, as its part may be about other things than when it was made.
    """
    results = json.loads(path.read_text())
    for name, cell, origin in records_of(results):
        part = part_of(path.stem, name)
        if part is not None and ("fingerprint" not in origin or lacking(PARTS[part], cell, origin["fingerprint"])):
            found = fingerprint(PARTS[part], cell, origin, commits)
            origin |= {} if found is None else {"fingerprint": found}
    for _, _, origin, found in states(results, path.stem):
        origin.pop("stale", None)
        if found not in ("current", "no fingerprint"):
            origin["stale"] = found
    write_json(path, results)


def table(folder: Path) -> str:
    """Return the state of all results as Markdown, a row for the cells of a part that share it."""
    counted: dict[tuple[str, str, str], int] = {}
    for path in sorted(folder.glob("*.json")):
        for part, _, origin, found in states(json.loads(path.read_text()), path.stem):
            key = part, str(origin.get("commit")), found
            counted[key] = counted.get(key, 0) + 1
    rows = [
        {"part": part, "results": str(count), "commit": commit, "state": found}
        for (part, commit, found), count in counted.items()
    ]
    return markdown_table(rows, right={"results"})


def main() -> None:
    """Print the state of all results; with --write, first add and mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add missing fingerprints, and mark what is out of date")
    if parser.parse_args().write:
        with tempfile.TemporaryDirectory() as folder:
            commits = Commits(Path(folder))
            for path in sorted(RESULTS.glob("*.json")):
                write(path, commits)
    print(table(RESULTS))


if __name__ == "__main__":
    main()
