"""A check that a split holds out the images that it held out when a model was trained."""

import os
import zlib
from collections.abc import Mapping
from typing import Any

from lightning import Callback, LightningDataModule, LightningModule, Trainer

from vit.data.module import SPLIT, ImageDataModule
from vit.support.first_process import print_once

CHANGED = (
    "note: the split has changed since the training, so {} images may include images that the model was trained on: "
    "keep the files, and --data.val_fraction, test_fraction, folds and fold, as they were"
)


class SameSplit(Callback):
    """Prints a note if evaluated images may be among those that the model was trained on.

    New images in a folder, or another ``val_fraction`` or ``fold``, change which images are held out. If the data are
    not those of the training, nothing is compared.

    Args:
        facts: What is known of the run, to which "same_split" is added if the split has changed.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.before: Mapping[str, int] | None = None  # the split of the training that is evaluated or continued

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the images of an evaluation."""
        if stage != "fit":
            self._compare(trainer.datamodule, {"validate": "val", "predict": "test"}.get(stage, stage))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the split in a checkpoint."""
        checkpoint[SPLIT] = describe_split(trainer.datamodule)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Compare the images of a training that goes on."""
        self.before = checkpoint.get(SPLIT)
        self._compare(trainer.datamodule, "val", "test")

    def _compare(self, data: Any, *stages: str) -> None:
        before, now = self.before, describe_split(data)
        self.before = None  # so that the note is printed once
        if not before or not now or before["place"] != now["place"] or before["train"] == now.get("train"):
            return
        if changed := [stage for stage in stages if stage in now and now[stage] != before.get(stage)]:
            self.facts["same_split"] = False
            print_once(CHANGED.format(" and ".join(changed)))


def describe_split(data: LightningDataModule | None) -> dict[str, int] | None:
    """Return a checksum of the place of the data, and one of the images of each split; None if these are unknown."""
    if not isinstance(data, ImageDataModule):
        return None
    root, table = (getattr(data, name, None) for name in ("root", "table"))
    place = f"{type(data).__name__} {root and root.resolve()}" + (f" {table.resolve()}" if table else "")
    return {"place": zlib.crc32(os.fsencode(place)), **data.fingerprints}
