"""``--ckpt_path auto``: a training goes on from the newest checkpoint of its experiment, or starts without one."""

import sys
from pathlib import Path

from vit.runs.agreement import decide_once
from vit.runs.folders import RUNS, check_experiment, newest_first
from vit.support.printable import printable
from vit.weights.checkpoint import describe_checkpoint

AUTO = "auto"


def find_newest(experiment: str, root: Path) -> Path | None:
    """Return the newest checkpoint of an experiment from which a training can go on, the same in all processes.

    One that was not written to its end is passed over, with a line; None if there is none.

    Args:
        experiment: Name of the experiment.
        root: The folder in which ``runs/`` is.
    """
    check_experiment(experiment)
    found = decide_once(lambda: str(_newest_whole(experiment, root / RUNS) or ""))
    return Path(found) if found else None


def _newest_whole(experiment: str, runs: Path) -> Path | None:
    for path in newest_first(experiment, runs):
        try:
            checkpoint = describe_checkpoint(path)
        except ValueError as error:
            print(f"passed over: {printable(' '.join(str(error).split()))}", file=sys.stderr)
            continue
        if "loops" in checkpoint:  # else it holds weights alone
            print(f"goes on from {printable(str(path))}", flush=True)
            return path
    print(f"starts: {printable(str(runs / experiment))} has no checkpoint to go on from", flush=True)
    return None
