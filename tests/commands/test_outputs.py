"""What the commands write: nothing over a file of the user, nothing half, and errors in one line."""

import csv
import os
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

import vit
from tests.tiny import CPU, TINY
from vit.__main__ import main
from vit.features import read_features
from vit.objectives.classify.objective import ViTClassifier
from vit.support.interrupts import STOPPED

WRITING = {
    "features": ["features", "photos", "--checkpoint", "tiny.safetensors", "-o", "{}.safetensors"],
    "weights": ["weights", "convert", "tiny.safetensors", "{}.pth", "--to", "timm"],
    "folder of weights": ["weights", "convert", "tiny.safetensors", "{}", "--to", "transformers"],
    "export": ["export", "tiny.safetensors", "{}.pt2"],
    "explain": ["explain", "photos/red.png", "--checkpoint", "tiny.safetensors", "--out", "{}", "--html"],
    "analysis": ["analysis", "--checkpoint", "tiny.safetensors", "--data.root", "photos", "--out", "{}"],
}
# A file that each of them would write.
WRITTEN = {
    "features": "{}.safetensors",
    "weights": "{}.pth",
    "folder of weights": "{}/config.json",
    "export": "{}.pt2",
    "explain": "{}/sheet.png",
    "analysis": "{}/probes.png",
}
COMMANDS = pytest.mark.parametrize("name", WRITING)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and two photographs, in which a command is run."""
    monkeypatch.chdir(tmp_path)
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, num_classes=2).eval()
    model.pretrained_cfg = {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "class_names": ["red", "blue"],
        "crop_ratio": 1.0,
    }
    vit.save(model, "tiny.safetensors")
    Path("photos").mkdir()
    for name, colour in (("red", (220, 30, 30)), ("blue", (30, 30, 220))):
        Image.new("RGB", (8, 8), colour).save(f"photos/{name}.png")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist may ignore it
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def command(name, place, *others):
    return [*(word.format(place) for word in WRITING[name]), *others]


def end_of(arguments, capsys):
    """Return the status of a command that fails, and its line."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return stopped.value.code, printed


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@COMMANDS
def test_a_file_that_exists_is_kept_and_named_before_the_work(name, here, capsys):
    taken = Path(WRITTEN[name].format("mine"))
    taken.parent.mkdir(exist_ok=True)
    taken.write_text("mine")
    before = files_below(here)
    Path("tiny.safetensors").unlink()  # the work would begin with it
    status, line = end_of(command(name, "mine"), capsys)
    assert (status, line) == (2, f"error: {taken} exists: add --overwrite, or name another file\n")
    del before[here / "tiny.safetensors"]
    assert files_below(here) == before


@COMMANDS
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/proc/mine", "(No such file or directory): name another place"),
        ("photos/red.png/mine", "(Not a directory): name another place: a part of the path is a file and no folder"),
        ("x" * 300, "(File name too long): give a shorter name"),
    ],
    ids=["/proc", "below a file", "long name"],
)
def test_a_place_that_cannot_be_written_is_named_before_the_work(name, place, reason, here, capsys):
    Path("tiny.safetensors").unlink()
    status, line = end_of(command(name, place), capsys)
    assert status == 2
    assert line.startswith("error: cannot write ")
    assert reason in line


@pytest.mark.parametrize("name", ["features", "weights", "folder of weights", "explain"])
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(name, here, capsys, monkeypatch):
    before = files_below(here)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, line = end_of(command(name, "new"), capsys)
    assert status == 2
    assert line.startswith("error: cannot write new")
    assert line.endswith(" (No space left on device): free some space, or name a place on another disk\n")
    assert files_below(here) == before


@pytest.mark.parametrize("name", ["features", "weights", "folder of weights", "explain"])
def test_ctrl_c_while_a_file_is_written_is_one_line_and_leaves_nothing(name, here, capsys, monkeypatch):
    before = files_below(here)
    monkeypatch.setattr(os, "fsync", lambda number: signal.raise_signal(signal.SIGINT))
    assert end_of(command(name, "new"), capsys) == (130, f"{STOPPED}\n")
    assert files_below(here) == before


@pytest.mark.parametrize(
    ("typed", "at"),
    [
        (WRITING["analysis"], "vit.analysis.trained_model.read_trained_model"),
        (WRITING["export"], "vit.weights.load"),
        (
            ["evaluate", "knn", "--checkpoint", "tiny.safetensors", "--data.root", "photos"],
            "vit.commands.evaluate.load",
        ),
        (["weights", "show", "tiny.safetensors"], "vit.commands.weights.load"),
    ],
    ids=["analysis", "export", "evaluate", "show"],
)
def test_ctrl_c_at_work_is_one_line(typed, at, here, capsys, monkeypatch):
    monkeypatch.setattr(at, lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert end_of([word.format("new") for word in typed], capsys) == (130, f"{STOPPED}\n")


@pytest.mark.parametrize(
    ("typed", "at", "told"),
    [
        (["test"], "on_test_batch_start", ""),
        (["predict", "--data.root", "photos", "--output", "said.csv"], "on_predict_batch_start", "continues it\n"),
        # The test at the end of a training: what is trained is kept.
        (["fit", "--trainer.max_epochs", "3"], "on_test_batch_start", "checkpoints/last.ckpt\n"),
    ],
    ids=["test", "predict", "fit"],
)
def test_ctrl_c_while_lightning_works_says_what_is_kept(typed, at, told, finished, here, capsys, monkeypatch):
    monkeypatch.setattr(ViTClassifier, at, lambda *_: signal.raise_signal(signal.SIGINT))
    checkpoint = str(finished.absolute() / "checkpoints/last.ckpt")
    with pytest.raises(SystemExit) as stopped:
        main([*typed, "--ckpt_path", checkpoint, *CPU])
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err) == (130, f"{STOPPED}\n")
    assert printed.out.endswith(told)
    assert not Path("said.csv").exists()


def test_predictions_are_written_over_a_file_with_overwrite_alone(finished, here, capsys):
    typed = ["predict", "--ckpt_path", str(finished / "checkpoints/last.ckpt"), "--data.root", "photos", *CPU]
    Path("said.csv").write_text("mine")
    status, line = end_of([*typed, "--output", "said.csv"], capsys)
    assert (status, line) == (2, "error: said.csv exists: add --overwrite, or name another file\n")
    assert Path("said.csv").read_text() == "mine"
    main([*typed, "--output", "said.csv", "--overwrite"])
    with Path("said.csv").open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)] == ["photos/blue.png", "photos/red.png"]
    assert [path.name for path in here.glob("said*")] == ["said.csv"]


def test_a_prediction_goes_on_after_the_rows_of_files_that_begin_like_formulas(finished, here, capsys, monkeypatch):
    monkeypatch.chdir(here / "photos")
    for name in ("=a.png", "=b.png", "=c.png"):
        shutil.copy("red.png", name)
    Path("red.png").unlink()
    Path("blue.png").unlink()
    typed = ["predict", "--ckpt_path", str(finished / "checkpoints/last.ckpt"), "--data.root", ".", *CPU]
    typed += ["--data.batch_size", "1", "--output", "../said.csv"]

    def stop_at_the_last(module, batch, batch_idx, *_) -> None:
        if batch_idx == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(ViTClassifier, "on_predict_batch_start", stop_at_the_last)
    with pytest.raises(SystemExit):
        main(typed)
    monkeypatch.setattr(ViTClassifier, "on_predict_batch_start", lambda *_: None)
    main(typed)
    assert "1 rows of ../said.csv" in capsys.readouterr().out
    with Path("../said.csv").open(newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)] == ["'=a.png", "'=b.png", "'=c.png"]


@pytest.mark.parametrize("name", ["features", "weights", "folder of weights", "explain"])
def test_overwrite_replaces_what_exists(name, here):
    main(command(name, "new"))
    written = Path(WRITTEN[name].format("new"))
    whole = written.read_bytes()
    written.write_text("old")
    main(command(name, "new", "--overwrite"))
    assert written.read_bytes() == whole


def test_names_that_are_no_text_or_act_on_terminals_stop_no_command(here, capfd):
    odd = Path(os.fsdecode(b"\x1b[31m \xff"))
    for color in ("red", "blue"):
        (odd / color).mkdir(parents=True)
        for number in range(3):
            shutil.copy(f"photos/{color}.png", odd / color / f"=1+{number} \x1b[31m \udcff.png")
    main(["features", str(odd), "--checkpoint", "tiny.safetensors", "-o", "f.safetensors"])
    assert read_features("f.safetensors")[0][0] == "blue/=1+0 \x1b[31m \udcff.png"
    main(["evaluate", "knn", "--checkpoint", "tiny.safetensors", "--data.root", str(odd)])
    main(["explain", str(odd / "red"), "--checkpoint", "tiny.safetensors", "--html"])
    assert (here / "explained" / r"=1+0 \x1b[31m \udcff.html").exists()
    with pytest.raises(SystemExit):
        main(["features", str(odd / "none"), "--checkpoint", "tiny.safetensors", "-o", "g.safetensors"])
    assert capfd.readouterr().err.startswith(r"error: no image at \x1b[31m \udcff/none")


def test_an_error_of_the_disk_is_one_line_wherever_it_is_raised(error_of, monkeypatch):
    def write(*_: object) -> None:  # as loggers of Lightning do, by other libraries
        shutil.rmtree(300 * "x")

    monkeypatch.setattr("vit.training.objective.make_optimizer", write)
    assert error_of("fit", *TINY).endswith("xxx: file name too long: give a shorter name")
