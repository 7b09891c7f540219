"""What a training measures: its clocks, its counts, and the history of its loss and accuracy."""

import time
from typing import Any


class Measurements:
    """The clocks, counts and history of a training; a resumed training continues those of its checkpoint."""

    def __init__(self) -> None:
        self.measured: dict[str, Any] = {"seconds": 0.0, "training_seconds": 0.0, "images": 0, "flop": 0}
        self.history: dict[str, list[dict[str, float]]] = {"train": [], "val": []}
        self.train_images: int | None = None
        self.clock: float | None = None
        self.last_batch_end = 0.0

    def start_clocks(self) -> None:
        """Start both clocks: of the run, and of the training steps."""
        self.clock = self.last_batch_end = time.monotonic()

    def update_seconds(self) -> None:
        """Add the time since the last call to the seconds of the run; before the training starts, there is none."""
        if self.clock is None:
            return
        now = time.monotonic()
        self.measured["seconds"] += now - self.clock
        self.clock = now

    def skip_pause(self) -> None:
        """Leave the time since the last batch, such as that for a validation, out of the training speed."""
        self.last_batch_end = time.monotonic()

    def count_batch(self, images: int, flop_per_image: int) -> None:
        """Add a batch to the counts, and the time it took to the seconds of training."""
        now = time.monotonic()
        self.measured["training_seconds"] += now - self.last_batch_end
        self.last_batch_end = now
        self.measured["images"] += images
        self.measured["flop"] += images * flop_per_image

    @property
    def images_per_second(self) -> float:
        """The speed of training, without validation and checkpoints."""
        return self.measured["images"] / max(self.measured["training_seconds"], 1e-9)

    def last_step(self, split: str) -> float | None:
        """Return the step of the last point in the history of "train" or "val"; None if there is none."""
        return self.history[split][-1]["step"] if self.history[split] else None
