"""The command folds: real trainings in this process, one for each fold and each seed."""

import csv
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU, MODEL, run_command
from vit.commands import folds
from vit.runs.child_processes import TrainingError

TRAINING = [
    *("--data", "ImageTable", "--data.table", "labels.csv", "--data.batch_size", "4", "--data.num_workers", "0"),
    *("--data.val_fraction", "0.2", *MODEL, *CPU, "--trainer.max_steps", "2"),
]
FOLDS = [*TRAINING, "--folds", "3", "--seeds", "5", "--experiment", "crops"]


class Trainer:
    """Trains in this process what ``train_all`` trains in others."""

    def __init__(self, stop_before=None, error=None):
        self.trained, self.stop_before, self.error = {}, stop_before, error

    def __call__(self, trainings, parallel, threads):
        for name, arguments in trainings.items():
            if name == self.stop_before:
                raise self.error
            self.trained[name] = arguments
            run_command("fit", *arguments)
            yield name


@pytest.fixture
def trainer(monkeypatch):
    """Put a trainer in place of the processes, and return it."""

    def put(*arguments):
        trainer = Trainer(*arguments)
        monkeypatch.setattr(folds, "train_all", trainer)
        return trainer

    return put


def write_images():
    """Twenty-four images of two classes in eight groups, and their table."""
    lines = []
    for number in range(24):
        pixels = np.random.default_rng(number).integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},patient {number // 3}\n")
    Path("labels.csv").write_text("file,label,group\n" + "".join(lines))


@pytest.fixture(scope="module")
def crops(module_folder):
    """A folder with three trained folds, and the trainer."""
    write_images()
    with pytest.MonkeyPatch.context() as patch:
        trainer = Trainer()
        patch.setattr(folds, "train_all", trainer)
        folds.main(FOLDS)
    return module_folder, trainer


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_image_is_predicted_by_the_fold_that_was_not_trained_on_its_group(crops):
    rows = read_table(crops[0] / "runs/crops/test_images.csv")
    truth = {row["file"]: row for row in read_table(crops[0] / "labels.csv")}
    assert sorted(row["file"] for row in rows) == sorted(truth)
    assert all(
        (row["true_class"], row["group"]) == (truth[row["file"]]["label"], truth[row["file"]]["group"]) for row in rows
    )
    assert {row["seed"] for row in rows} == {"5"}
    folds_of_groups = {(row["group"], row["fold"]) for row in rows}
    assert len(folds_of_groups) == 8
    assert {fold for _, fold in folds_of_groups} == {"0", "1", "2"}


def test_the_predictions_are_those_of_the_weights_of_the_fold(crops):
    results = json.loads((crops[0] / "runs/crops/results.json").read_text())
    models = {
        str(run["fold"]): vit.load(f"{crops[0] / run['folder']}/checkpoints/last.ckpt") for run in results["runs"]
    }
    for row in read_table(crops[0] / "runs/crops/test_images.csv"):
        model = models[row["fold"]]
        mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
        image = torch.from_numpy(np.array(Image.open(crops[0] / row["file"]))).movedim(-1, 0) / 255
        probabilities = model(((image - mean) / std)[None]).softmax(dim=1)[0].tolist()
        assert [float(row["P(a)"]), float(row["P(b)"])] == pytest.approx(probabilities, abs=1e-5)
        assert row["class"] == "ab"[probabilities[1] > probabilities[0]]


def test_the_scores_are_those_of_the_runs_which_are_ordinary_ones(crops):
    folder, trainer = crops
    assert list(trainer.trained) == ["fold 0, seed 5", "fold 1, seed 5", "fold 2, seed 5"]
    runs = [json.loads((folder / f"runs/crops/version_{number}/results.json").read_text()) for number in range(3)]
    found = json.loads((folder / "runs/crops/results.json").read_text())
    accuracies = [run["test_accuracy"] for run in runs]
    assert found["scores"]["test_accuracy"]["mean"] == pytest.approx(statistics.mean(accuracies))
    assert found["scores"]["test_accuracy"]["standard_deviation"] == pytest.approx(statistics.stdev(accuracies))
    assert [run["seed"] for run in runs] == [5, 5, 5]
    assert (found["folds"], found["seeds"], found["test_images"]) == (3, [5], 24)
    # The accuracy of a fold is that of its rows.
    for number, run in enumerate(runs):
        rows = [row for row in read_table(folder / "runs/crops/test_images.csv") if row["fold"] == str(number)]
        assert run["test_accuracy"] == sum(row["class"] == row["true_class"] for row in rows) / len(rows)


def test_what_is_finished_is_not_trained_again_and_further_seeds_are_added(crops, trainer, monkeypatch, capsys):
    monkeypatch.chdir(crops[0])
    again = trainer()
    folds.main(FOLDS)
    assert again.trained == {}
    assert "runs/crops: 3 runs, 3 finished, 0 continue from a checkpoint" in capsys.readouterr().out
    stopped = trainer("fold 1, seed 6", KeyboardInterrupt)
    with pytest.raises(SystemExit) as end:
        folds.main([*FOLDS[:-3], "6", "--experiment", "crops"])
    assert end.value.code == 130
    assert list(stopped.trained) == ["fold 0, seed 6"]
    assert capsys.readouterr().err.strip() == "stopped; 1 of 3 runs finished: the same command goes on"


def test_a_run_that_was_stopped_continues_from_its_last_checkpoint(folder, trainer, capsys):
    write_images()
    command = [*TRAINING, "--trainer.max_steps", "6", "--seeds", "1", "2", "--experiment", "seeds"]
    # As if the second seed was killed in its test.
    trainer()
    folds.main(command)
    (folder / "runs/seeds/version_1/results.json").unlink()
    capsys.readouterr()

    trainer("seed 2", TrainingError("seed 2 failed with exit status 1: error: no space left"))
    with pytest.raises(SystemExit) as end:
        folds.main(command)
    assert end.value.code == 2
    assert capsys.readouterr().err.strip() == (
        "error: seed 2 failed with exit status 1: no space left; 1 of 2 runs finished, and seed 2 will continue "
        "from the last checkpoint: the same command goes on"
    )

    resumed = trainer()
    folds.main(command)
    checkpoint = "runs/seeds/version_1/checkpoints/last.ckpt"
    assert resumed.trained == {"seed 2": ["--ckpt_path", checkpoint, "--experiment", "seeds"]}
    found = json.loads((folder / "runs/seeds/results.json").read_text())
    assert [run["folder"] for run in found["runs"]] == ["runs/seeds/version_0", "runs/seeds/version_2"]
    assert [run["steps"] for run in found["runs"]] == [6, 6]
    rows = read_table(folder / "runs/seeds/test_images.csv")
    assert "fold" not in rows[0]
    assert {row["file"] for row in rows if row["seed"] == "1"} == {row["file"] for row in rows if row["seed"] == "2"}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--data.fold", "1"], "folds takes no --data.fold: leave it out, as each fold is trained"),
        (["--data.folds=4"], "folds takes no --data.folds: type --folds"),
        (["--ckpt_path", "last"], "folds takes no --ckpt_path: leave it out: the same command continues what was"),
        (["--seeds", "1", "--seed_everything", "2"], "folds takes no --seed_everything: leave it out beside --seeds"),
        (
            ["--trainer.limit_test_batches", "0"],
            "every image is tested in its fold: leave --trainer.limit_test_batches",
        ),
        (["--folds", "0"], "--folds (0) must be a positive whole number: 5 is usual"),
        (["--folds", "1"], "folds (1) must be at least 2: one part is for test, and the others for training"),
        (["--parallel", "0"], "--parallel (0) must be a positive whole number"),
        (["--seeds", "-1"], "--seeds (-1) must be a whole number of at least 0"),
        (["--seeds", "x"], "argument --seeds: invalid int value: 'x'"),
        (["--model.dept", "3"], "Option 'dept' is not accepted (did you mean depth?)"),
        (["--experiment", "../x"], "experiment ('../x') must be the name of one folder, such as 'digits'"),
        (["--config", "gone.yaml"], "no config gone.yaml: name a file, or one of "),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, typed, message):
    with pytest.raises(SystemExit) as end:
        folds.main(["--data", "Digits", *typed])
    assert end.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {message}")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "ckpt_path: x.ckpt",
            "folds takes no ckpt_path in a config: leave it out: the same command continues what was",
        ),
        (
            "data: {class_path: Digits, init_args: {folds: 5, fold: 0}}",
            "folds takes no folds of the data in a config: type",
        ),
        (
            "trainer: {default_root_dir: mine}",
            "folds takes no default_root_dir in a config: leave it out: the runs are",
        ),
        ("trainer: {fast_dev_run: true}", "folds takes no fast_dev_run in a config: try fit, which leaves no results"),
    ],
)
def test_a_config_that_asks_for_what_this_command_decides_is_refused(folder, capsys, content, message):
    (folder / "c.yaml").write_text(content)
    with pytest.raises(SystemExit):
        folds.main(["--config", "c.yaml", "--data", "Digits", "--seeds", "0", "1", *MODEL])
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_two_commands_at_once_do_not_train_the_same_runs(folder, trainer, capsys):
    def train_twice(trainings, parallel, threads):
        folds.main(["--data", "Digits", "--experiment", "digits"])
        yield ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "train_all", train_twice)
        with pytest.raises(SystemExit):
            folds.main(["--data", "Digits", "--experiment", "digits"])
    assert capsys.readouterr().err.startswith("error: another process trains the runs of runs/digits: wait for it")


@pytest.mark.parametrize(
    ("typed", "names", "last"),
    [
        ([], [f"fold {fold}, seed 0" for fold in range(5)], ["--data.fold", "4", "--seed_everything", "0"]),
        (["--seeds", "3", "1", "3"], ["seed 3", "seed 1"], ["--data", "Digits", "--seed_everything", "1"]),
        (["--folds", "2", "--seed_everything", "7"], ["fold 0, seed 7", "fold 1, seed 7"], ["--data.fold", "1"]),
        (
            ["--folds", "2", "--seeds", "3", "4"],
            ["fold 0, seed 3", "fold 1, seed 3", "fold 0, seed 4", "fold 1, seed 4"],
            ["--data.folds", "2", "--data.fold", "1", "--seed_everything", "4", "--experiment", "digits_folds"],
        ),
    ],
)
def test_folds_and_seeds_are_trained_alone_or_together(folder, monkeypatch, typed, names, last):
    asked = {}

    def note(trainings, parallel, threads):
        asked.update(trainings)
        raise TrainingError("enough")
        yield

    monkeypatch.setattr(folds, "train_all", note)
    with pytest.raises(SystemExit):
        folds.main(["--data", "Digits", *typed])
    assert list(asked) == names
    assert set(last) <= set(asked[names[-1]])


def test_what_a_data_module_of_the_user_tells_is_no_option_as_in_its_runs(folder):
    found = folds._all_options(["--data", "tests.user_classes.OwnData", *MODEL, *CPU])
    told = {"num_classes", "class_names", "mean", "std", "image_size", "in_channels"}
    assert not found["model"]["init_args"].keys() & told


def test_runs_that_start_from_trained_weights_are_recognised(folder, trainer, capsys):
    write_images()
    data = ["--data", "ImageTable", "--data.table", "labels.csv", "--data.num_workers", "0", "--data.batch_size", "4"]
    start = ["--model.init_from", "cifar10", *CPU, "--trainer.max_steps", "1", "--experiment", "tuned"]
    typed = [*data, *start, "--folds", "2"]
    trainer()
    folds.main(typed)
    again = trainer()
    folds.main(typed)
    assert again.trained == {}
    assert len(read_table(folder / "runs/tuned/test_images.csv")) == 24
