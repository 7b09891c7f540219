"""A callback that writes predictions to a CSV file, row by row, and continues a file that a kill left unfinished."""

import csv
import glob
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from vit.data.module import ImageDataModule
from vit.data.unsorted import UnsortedImages
from vit.support.files import check_outputs, writing
from vit.support.printable import csv_text, printable


class PredictionWriter(Callback):
    """Write one row per image, with its file and its prediction, and print the unreadable files.

    Rows go to ``NAME.KEY.START.partial`` as they come; the file gets its name when it is complete. No file is replaced
    without ``overwrite``. The same prediction, started again after a kill, keeps the rows of the partial file, except
    for images that are gone or were changed after START, the nanosecond at which the file was begun.

    Args:
        path: The file.
        is_typed: Whether the user chose the path; if not, a number is added to the name if the file exists.
        key: Identifies the images, the weights and the settings, so that no file mixes two predictions.
        columns: Columns after the file, as the module's ``prediction_rows`` fills them.
        overwrite: Whether a chosen file that exists is replaced.

    Raises:
        ValueError: If a chosen file exists and is not to be replaced, or another process makes the same prediction.
    """

    def __init__(self, path: Path, is_typed: bool, key: str, columns: Sequence[str], overwrite: bool = False) -> None:
        check_outputs([path], overwrite or not is_typed)
        self.path = path
        self.is_typed = is_typed
        self.overwrite = is_typed and overwrite
        self.columns = ["file", *columns]
        name = f"{path.name}.{key}"
        self.lock = FileLock(path.with_name(f"{name}.partial.lock"))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.lock.acquire(timeout=0)
            except Timeout:
                raise ValueError(
                    f"another process makes the same prediction for {path}: wait for it, or name another file by "
                    "--output"
                ) from None
        begun = sorted(path.parent.glob(f"{glob.escape(name)}.[0-9]*.partial"))
        self.partial = begun[0] if begun else path.with_name(f"{name}.{_now_in(path.parent)}.partial")
        self.rows = 0
        self.unreadable: list[str] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the file, or continue it after its last complete row."""
        data = trainer.datamodule
        rows = self._kept_rows(data.files.paths) if isinstance(data, UnsortedImages) else []
        self._write([dict(zip(self.columns, self.columns, strict=True)), *rows], mode="w")
        self.rows = len(rows)
        if rows:
            print(f"{len(rows)} rows of {self.partial} are kept: predicting the other images")
            done = Counter(row["file"] for row in rows)
            files = [str(path) for path in data.files.paths]
            data.leave_out({file for file in files if _remove_one(done, csv_text(file))})

    def _kept_rows(self, paths: Sequence[Path]) -> list[dict[str, str]]:
        """Return the complete rows of the partial file whose images are what they were at its start."""
        if not (rows := _complete_rows(self.partial)):
            return []
        start = int(self.partial.name.split(".")[-2])
        changed = {csv_text(str(path)) for path in paths if _was_changed(path, start)}
        same = {csv_text(str(path)) for path in paths} - changed
        kept = [row for row in rows if row["file"] in same]
        if len(kept) < len(rows):
            left_out = len(rows) - len(kept)
            print(f"left out of {printable(str(self.partial))}, as images are gone or changed: {left_out}")
        return kept

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: tuple[Tensor, list[str], list[str]],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the rows of a batch."""
        _, files, unreadable = batch
        self.unreadable += unreadable
        described = pl_module.prediction_rows(outputs)
        rows = [
            {"file": csv_text(file)} | {name: csv_text(text) for name, text in row.items()}
            for file, row in zip(files, described, strict=True)
        ]
        self._write(rows, mode="a")
        self.rows += len(rows)
        if trainer.received_sigterm:  # Lightning's loop would predict to the end
            raise SIGTERMException

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the complete file its name, and print the messages about unreadable files.

        Raises:
            ValueError: If no file can be read, or the chosen name was taken since the prediction began.
        """
        if not self.rows:
            self.partial.unlink()
            raise ValueError(
                f"cannot read any of the {len(self.unreadable):,} image files of {trainer.datamodule.root}, and "
                f"nothing is predicted; the first: {self.unreadable[0]}"
            )
        path = next(filter(self._claim_name, self._names()), None)
        self._release()
        if path is None:
            raise ValueError(f"{self.path} exists since the prediction began: its rows are in {self.partial}")
        for message in self.unreadable:
            print(printable(message), file=sys.stderr)
        data = trainer.datamodule
        of_test = " of the test images" if isinstance(data, ImageDataModule) and data.sets else ""
        print(f"{self.rows} predictions{of_test} in {printable(str(path))}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print how to continue."""
        self._release()
        if self.partial.exists():
            goes_on = "continues it" if isinstance(trainer.datamodule, UnsortedImages) else "starts anew"
            print(f"{self.rows} predictions in {printable(str(self.partial))}: the same command {goes_on}", flush=True)

    def _write(self, rows: list[dict[str, str]], mode: Literal["w", "a"]) -> None:
        with writing(self.partial), self.partial.open(mode, newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerows(rows)

    def _claim_name(self, path: Path) -> bool:
        """Give the file a name unless that is taken; with hard links, in one step that a kill cannot split."""
        if self.overwrite:
            self.partial.replace(path)
            return True
        try:
            path.hardlink_to(self.partial)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            self.partial.replace(path)
        self.partial.unlink(missing_ok=True)
        return True

    def _names(self) -> Iterator[Path]:
        yield self.path
        if not self.is_typed:
            yield from (self.path.with_name(f"{self.path.stem}_{number}{self.path.suffix}") for number in count(1))

    def _release(self) -> None:
        self.lock.release()
        Path(self.lock.lock_file).unlink(missing_ok=True)


def _complete_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of an unfinished file, except the last one, which the kill may have cut."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))[:-1]


def _now_in(folder: Path) -> int:
    """Return the time of a folder's file system in nanoseconds, which may not be that of this machine."""
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _was_changed(path: Path, start: int) -> bool:
    """Return whether an image was changed since a time, or replaced by another file or link."""
    return any(max(status.st_mtime_ns, status.st_ctime_ns) >= start for status in (path.stat(), path.lstat()))


def _remove_one(counted: Counter[str], name: str) -> bool:
    """Take one from a counter, and return whether it was there; two files may have the same name in the table."""
    counted[name] -= 1
    return counted[name] >= 0
