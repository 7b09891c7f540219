"""``--ckpt_path auto``: a training continues from the newest checkpoint of its experiment, or starts without one."""

import sys
from functools import partial
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from vit.runs.folders import RUNS, check_experiment, newest_first
from vit.support.printable import printable
from vit.weights.checkpoint import describe_checkpoint

AUTO = "auto"


def find_newest(experiment: str, root: Path) -> Path | None:
    """Return the newest checkpoint of an experiment that a training can continue from; None if there is none.

    A checkpoint that cannot be read, such as one not written to its end, is passed over, and a line says so.

    Args:
        experiment: Name of the experiment.
        root: The folder that contains ``runs/``.
    """
    check_experiment(experiment)
    say = partial(rank_zero_only(print), flush=True)
    for path in newest_first(experiment, root / RUNS):
        try:
            checkpoint = describe_checkpoint(path)
        except ValueError as error:
            say(f"passed over: {printable(' '.join(str(error).split()))}", file=sys.stderr)
            continue
        if "callbacks" in checkpoint:  # else it holds weights alone
            say(f"goes on from {printable(str(path))}")
            return path
    say(f"starts: {printable(str(root / RUNS / experiment))} has no checkpoint to go on from")
    return None
