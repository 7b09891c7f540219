"""A run that is stopped at any point and resumed ends with the same weights, to the last bit."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from tests.tiny import CPU, MODEL, run_command
from vit.objectives import ViTClassifier

LAST = Path("runs/resume/version_0/checkpoints/last.ckpt")
RANDOM = [  # every source of randomness, and an average beside the weights
    *("--data", "Digits", "--data.batch_size", "100", "--data.crop_padding", "1", "--data.erasing", "0.5"),
    *("--data.mixup", "0.5", "--data.cutmix", "1", "--data.policy", "trivialaugment"),
    *("--data.flip", "alternate", "--data.policy_from", "1"),
    *(*MODEL, *CPU, "--model.dropout", "0.1", "--model.drop_path", "0.2", "--model.ema_decay", "0.9"),
    *("--trainer.max_epochs", "2", "--experiment", "resume"),
]


@pytest.fixture(scope="module")
def whole(module_folder) -> Path:
    """A folder with a run that was not stopped, ``runs/resume/version_0``, and its checkpoint after step 20."""

    def save_step_20(self, *_) -> None:
        if self.trainer.global_step == 20:
            self.trainer.save_checkpoint("middle.ckpt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViTClassifier, "on_train_batch_end", save_step_20)
        run_command("fit", *RANDOM)
    return module_folder


def weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors that a resumed run continues from."""
    checkpoint = torch.load(path, weights_only=True)
    return checkpoint["state_dict"] | {f"training.{name}": t for name, t in checkpoint["training_weights"].items()}


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_resumed_from_the_middle_of_an_epoch_ends_with_the_same_bits(whole, run, folder):
    assert torch.load(whole / "middle.ckpt", weights_only=True)["epoch"] == 1
    run("fit", *RANDOM, "--ckpt_path", whole / "middle.ckpt")
    assert_same_weights(whole / LAST, folder / LAST)


# Lightning's own callback, which is in another folder now.
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize(
    "changed",
    [[], ["--data.val_fraction", "0"], ["--data.val_fraction", "0", "--trainer.limit_train_batches", "6"]],
    ids=["validated", "not validated", "part of the batches"],
)
def test_a_run_of_steps_resumed_from_the_end_of_an_epoch_ends_with_the_same_bits(run, folder, changed):
    every_epoch = [
        *("--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.save_top_k", "-1"),
        *("--trainer.callbacks.save_on_train_epoch_end", "true", "--trainer.callbacks.dirpath"),
    ]
    steps = ["--trainer.max_epochs", "-1", "--trainer.max_steps", "22", *changed]
    run("fit", *RANDOM, *steps, *every_epoch, "whole")
    first = next((folder / "whole").glob("epoch=0*.ckpt"))

    run("fit", *RANDOM, *steps, *every_epoch, "resumed", "--ckpt_path", first)

    runs = folder / "runs/resume"
    results = [json.loads((runs / name / "results.json").read_text()) for name in ("version_0", "version_1")]
    assert [result["steps"] for result in results] == [22, 22]
    assert_same_weights(runs / "version_0/checkpoints/last.ckpt", runs / "version_1/checkpoints/last.ckpt")


def test_a_finished_run_says_so_and_ends(whole, run, folder, capsys):
    shutil.copytree(whole / "runs", folder / "runs")
    for again in (["--experiment", "resume"], RANDOM):
        with pytest.raises(SystemExit) as stopped:
            run("fit", *again, "--ckpt_path", "last")
        assert stopped.value.code == 0
        assert capsys.readouterr().out.startswith("runs/resume/version_0 is finished; to train on, set a larger ")
    assert [path.name for path in (folder / "runs/resume").iterdir()] == ["version_0"]


@pytest.mark.parametrize("length", [["--trainer.max_epochs", 1], ["--trainer.max_steps", 10_000]])
def test_a_run_that_has_nothing_left_to_train_says_so(whole, run, folder, capsys, length):
    run("fit", "--ckpt_path", whole / LAST, *length)
    assert "nothing was left to train after epoch 2, step 24: to train on, set a larger " in capsys.readouterr().out


def test_a_run_killed_in_its_test_is_resumed_to_test_the_same_weights(whole, run, folder):
    shutil.copytree(whole / "runs", folder / "runs")
    (folder / "runs/resume/version_0/results.json").unlink()
    cli = run("fit", "--ckpt_path", "last", "--experiment", "resume")
    runs = (whole / LAST.parents[1], cli.run_folder)
    before, after = (json.loads((run_folder / "results.json").read_text()) for run_folder in runs)
    assert cli.run_folder == Path("runs/resume/version_1")
    assert after["test_accuracy"] == before["test_accuracy"]
    assert (after["steps"], after["seed"]) == (before["steps"], before["seed"])


def test_the_best_weights_come_along_from_a_folder_that_was_moved(whole, run, folder):
    moved = folder / "elsewhere"
    shutil.copytree(whole / "runs", moved)
    last, best = (moved / f"resume/version_0/checkpoints/{name}.ckpt" for name in ("last", "best"))
    longer = ["--trainer.max_epochs", "3", "--trainer.limit_test_batches", "0"]
    cli = run("fit", *RANDOM, *longer, "--trainer.limit_val_batches", "0", "--ckpt_path", last)
    taken = torch.load(cli.run_folder / "checkpoints/best.ckpt", weights_only=True)
    assert taken["global_step"] == torch.load(best, weights_only=True)["global_step"]

    best.unlink()
    cli = run("fit", *RANDOM, *longer, "--ckpt_path", last)
    assert (cli.run_folder / "checkpoints/best.ckpt").exists()


def test_a_run_killed_soon_after_a_resume_keeps_its_config(whole, run, folder, monkeypatch):
    shutil.copytree(whole / "runs", folder / "runs")
    (folder / "runs/resume/version_0/results.json").unlink()

    def killed(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ViTClassifier, "on_train_start", killed)
    with pytest.raises(SystemExit):
        run("fit", "--ckpt_path", "last", "--trainer.max_epochs", "3")
    monkeypatch.undo()
    second = folder / "runs/resume/version_1"
    assert yaml.safe_load((second / "config.yaml").read_text())["trainer"]["max_epochs"] == 3


def test_a_checkpoint_without_its_config_is_refused(whole, error_of, folder):
    shutil.copy(whole / LAST, folder / "alone.ckpt")
    answer = error_of("fit", "--ckpt_path", "alone.ckpt")
    assert "alone.ckpt has lost the config.yaml of its run: the length of the training, its seed and" in answer
    moved = folder / "runs/resume/version_0/checkpoints/last.ckpt"
    moved.parent.mkdir(parents=True)
    shutil.copy(whole / LAST, moved)
    assert "last.ckpt has lost the config.yaml of its run" in error_of("fit", "--ckpt_path", "last")


@pytest.mark.parametrize("other", [["--model.optimizer", "muon"], ["--model.layer_decay", "0.5"]])
def test_the_state_of_another_optimizer_is_refused(whole, error_of, other):
    longer = ["--trainer.max_epochs", "3"]
    assert f"leave {other[0]} as it was" in error_of("fit", *RANDOM, *other, *longer, "--ckpt_path", whole / LAST)


@pytest.mark.parametrize("command", ["fit", "test", "predict"])
def test_sigterm_ends_with_the_status_that_a_shell_expects(whole, run, folder, monkeypatch, command):
    def terminated(*_) -> None:
        signal.raise_signal(signal.SIGTERM)

    hook = {"fit": "on_train_batch_start", "test": "on_test_batch_start", "predict": "on_predict_batch_start"}[command]
    monkeypatch.setattr(ViTClassifier, hook, terminated)
    (folder / "images").mkdir()
    for number in range(3):
        Image.new("L", (8, 8), number).save(folder / f"images/{number}.png")
    read = ["--ckpt_path", whole / LAST, *CPU]
    images = ["--data.root", "images", "--data.batch_size", "1"]
    arguments = {"fit": RANDOM, "test": [*read, "--data.batch_size", "100"], "predict": [*read, *images]}[command]
    with pytest.raises(SystemExit) as stopped:
        run(command, *arguments)
    assert stopped.value.code == 128 + 15


def test_the_parts_of_a_run_that_is_resumed_share_its_time(run, folder):
    limited = ["fit", "--data", "Digits", *MODEL, *CPU, "--trainer.max_time", "00:00:01:40", "--experiment", "resume"]
    run(*limited, "--trainer.max_steps", "2")
    part = torch.load(LAST, weights_only=True)
    spent = part["callbacks"]["Timer"]["time_elapsed"]
    assert 0 < spent["train"] < 60
    spent["train"] = 99.99  # of 100 seconds
    torch.save(part, "part.ckpt")
    cli = run(*limited, "--trainer.max_steps", "1000", "--ckpt_path", "part.ckpt")
    assert cli.trainer.global_step < 200  # as many steps as 10 ms hold, on any machine; without the shared time 1,000
    group = cli.trainer.optimizers[0].param_groups[0]
    assert group["lr"] <= 3e-8 * group["initial_lr"]  # what the cosine leaves in the last 10 of 100,000 ms
