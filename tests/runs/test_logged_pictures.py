"""Pictures go to each logger that takes images, by its own call."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit.runs.logged_pictures import CALLS, log_pictures


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (5, 4), "red").save(tmp_path / "dot.png")
    return tmp_path / "dot.png"


def test_tensorboard_has_the_picture_and_csv_takes_none(picture, tmp_path):
    board = TensorBoardLogger(tmp_path / "board")
    log_pictures([CSVLogger(tmp_path / "csv"), board], [picture], 7)
    board.experiment.close()
    events = EventAccumulator(board.log_dir).Reload()
    (image,) = events.Images("dot")
    assert (image.step, image.width, image.height) == (7, 5, 4)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "TensorBoardLogger"])
def test_a_logger_and_what_is_derived_from_it_get_the_file(picture, name):
    taken = MagicMock()
    logger = type(
        "Derived", (type(name, (), {}),), {"experiment": taken, "log_image": taken, "log_file": taken, "run_id": "3"}
    )()
    log_pictures([logger], [picture], 7, name="attention")
    assert str(Path(picture)) in str(taken.mock_calls)
