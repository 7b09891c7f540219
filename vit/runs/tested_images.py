"""The table of the test images, ``test_images.csv``: what the model said of each file, beside the truth."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from vit.runs.record import RunRecord
from vit.runs.splits import splits_of
from vit.support.files import replacing
from vit.support.printable import csv_text, plain_text

TEST_IMAGES = "test_images.csv"
UTF8 = {"encoding": "utf-8", "errors": "backslashreplace"}  # names of files may be bytes that are not UTF-8


class PerImageTable(Callback):
    """Write a row for each tested image, in the order of the data set: its file, and what the objective says of it.

    The file is a path below the root of the data, or the number of an image in the split if it has no file. The next
    columns are the truth; then come those of ``predict``.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    @rank_zero_only
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table."""
        if trainer.fast_dev_run:
            return
        images, found = splits_of(trainer)["test"], pl_module.evaluated_rows()
        rows = [{"file": images.name(index)} | row for index, row in sorted(found.items())]
        if rows:
            write_rows(self.record.folder / TEST_IMAGES, rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows as a CSV file, whole or not at all, with every column that a row has."""
    with replacing(path) as unfinished, unfinished.open("w", newline="", **UTF8) as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows({name: csv_text(cell) for name, cell in row.items()} for row in rows)


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table in the folder of a run or of an evaluation; [] if there is none."""
    path = folder / TEST_IMAGES
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: plain_text(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
