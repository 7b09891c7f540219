"""The table of predictions: which rows of an unfinished one are kept."""

import csv
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from vit.data import Digits, UnsortedImages
from vit.runs.predictions import PredictionWriter

SAID = {"class": "cat"}
MODULE = SimpleNamespace(prediction_rows=lambda outputs: [SAID] * outputs)


@pytest.fixture
def images(tmp_path):
    for name in "abcde":
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / f"photos/{name}.png")
    return tmp_path / "photos"


def begin(images: Path) -> tuple[PredictionWriter, SimpleNamespace]:
    """A writer that has begun or continued a table, and its trainer."""
    data = UnsortedImages(str(images), (8, 8), 3, num_workers=0)
    trainer = SimpleNamespace(datamodule=data, received_sigterm=False)
    writer = PredictionWriter(images.with_name("out.csv"), True, "key", [*SAID])
    writer.setup(trainer, MODULE, "predict")
    return writer, trainer


def predict(writer: PredictionWriter, trainer: SimpleNamespace) -> None:
    files = [str(path) for path in trainer.datamodule.files.paths]
    writer.on_predict_batch_end(trainer, MODULE, len(files), (None, files, []), 0)


def test_rows_of_images_that_were_replaced_or_are_gone_are_predicted_again(images, capsys):
    writer, trainer = begin(images)
    predict(writer, trainer)
    writer.on_exception(trainer, MODULE, KeyboardInterrupt())
    assert capsys.readouterr().out.endswith(": the same command continues it\n")
    soon = time.time_ns() + 10**9  # the clock of a file system may be some milliseconds late
    os.utime(images / "b.png", ns=(soon, soon))
    (images / "c.png").unlink()
    writer, trainer = begin(images)
    assert [path.name for path in trainer.datamodule.files.paths] == ["b.png", "e.png"]  # the kill may cut the last row
    assert f"left out of {writer.partial}, as images are gone or changed: 2" in capsys.readouterr().out
    predict(writer, trainer)
    writer.on_predict_end(trainer, MODULE)
    rows = [*csv.DictReader(images.with_name("out.csv").read_text().splitlines())]
    assert [Path(row["file"]).name for row in rows] == ["a.png", "d.png", "b.png", "e.png"]
    assert sorted(path.name for path in images.parent.iterdir()) == ["out.csv", "photos"]


def test_a_prediction_of_labelled_images_starts_anew_and_says_so(images, capsys):
    trainer = SimpleNamespace(datamodule=Digits(), received_sigterm=False)
    for rows in (3, 2):
        writer = PredictionWriter(images.with_name("out.csv"), True, "key", [*SAID])
        writer.setup(trainer, MODULE, "predict")
        writer.on_predict_batch_end(trainer, MODULE, rows, (None, ["a", "b", "c"][:rows], []), 0)
        writer.on_exception(trainer, MODULE, KeyboardInterrupt())
        assert capsys.readouterr().out == f"{rows} predictions in {writer.partial}: the same command starts anew\n"
        assert len(writer.partial.read_text().splitlines()) == 1 + rows
