"""A training that waits for the word: one of the processes of training_step.py, on any commit that has the recipe.

    PYTHONPATH=TREE python benchmarks/training_step_worker.py fit --config configs/cifar10_quick.yaml ...

It makes as many steps as a line of its input says, prints their seconds by part as JSON, and waits again.
"""

import json
import os
import sys
import time
from collections import Counter
from typing import Any

from lightning import Callback


class Paused(Callback):
    """Makes steps when told to, and measures the parts of each: the time from one hook to the next."""

    def __init__(self) -> None:
        self.left = 0
        self.parts: Counter[str] = Counter()
        self.last = 0.0

    def pass_to(self, part: str) -> None:
        """Add the time since the last hook to a part."""
        now = time.perf_counter()
        self.parts[part] += now - self.last
        self.last = now

    def on_train_batch_start(self, *args: Any) -> None:
        """Wait for the word if no step is left."""
        if self.left == 0:
            if self.parts:
                print(json.dumps(self.parts), flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                os._exit(0)  # what a training does at its end is not asked for
            self.left = int(line)
            self.parts, self.last = Counter(), time.perf_counter()
        else:
            self.pass_to("data and callbacks")
        self.left -= 1

    def on_before_backward(self, *args: Any) -> None:
        """End the forward pass."""
        self.pass_to("forward")

    def on_after_backward(self, *args: Any) -> None:
        """End the backward pass."""
        self.pass_to("backward")

    def on_train_batch_end(self, *args: Any) -> None:
        """End the step of the optimiser, and the clipping of the gradients before it."""
        self.pass_to("optimiser")


if __name__ == "__main__":
    import train  # of the tree in PYTHONPATH

    train.main([*sys.argv[1:], "--trainer.callbacks+=training_step_worker.Paused"])
