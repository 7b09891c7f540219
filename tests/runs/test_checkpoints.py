import os
import resource
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from tests.forked import forked
from vit.runs.checkpoints import AtomicCheckpointIO, RunCheckpoint, with_atomic_files
from vit.training.description import Score


def checkpoint(value: float) -> dict:
    return {"state_dict": {"weight": torch.full((1000,), value)}, "hyper_parameters": {}}


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), path)
    loaded = AtomicCheckpointIO().load_checkpoint(path)
    assert torch.equal(loaded["state_dict"]["weight"], torch.full((1000,), 2.0))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_full_disk_leaves_the_previous_checkpoint_and_says_so(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0), path)

    def write_too_much() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, most))
        with pytest.raises(OSError, match="could not write") as error:
            AtomicCheckpointIO().save_checkpoint(checkpoint(2.0) | {"more": torch.zeros(100_000)}, path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert f"could not write {path}" in str(error.value)
        assert "the one before is intact; free some space, then resume" in str(error.value)

    process = forked(tmp_path.with_suffix(".txt"), write_too_much)
    process.join()
    assert process.exitcode == 0, tmp_path.with_suffix(".txt").read_text()
    assert AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_file_takes_the_place_of_the_folder_of_a_distributed_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    path.mkdir()
    (path / ".metadata").touch()
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0), path)
    assert AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0] == 1.0


def test_files_are_written_whole_also_while_the_training_goes_on(tmp_path):
    (plugin,) = with_atomic_files([AsyncCheckpointIO()])
    plugin.save_checkpoint(checkpoint(1.0), tmp_path / "last.ckpt")
    plugin.teardown()
    assert plugin.load_checkpoint(tmp_path / "last.ckpt")["state_dict"]["weight"][0] == 1.0
    assert isinstance(plugin.checkpoint_io, AtomicCheckpointIO)


def test_another_way_of_writing_checkpoints_stays_alone():
    own = TorchCheckpointIO()
    assert with_atomic_files([own]) == [own]
    precision, added = with_atomic_files([DoublePrecision()])
    assert isinstance(precision, DoublePrecision)
    assert isinstance(added, AtomicCheckpointIO)


def test_an_interrupted_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0), path)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), path)
    assert AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0] == 1.0


@pytest.fixture
def best(tmp_path):
    """Validate with an accuracy and a loss; return whether the checkpoint is the best so far."""
    callback = RunCheckpoint(tmp_path, "best", monitor=Score("accuracy", "Accuracy"))
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision: decision)

    def validate(accuracy: float, loss: float) -> bool:
        current = torch.tensor(accuracy)
        trainer = SimpleNamespace(callback_metrics={"val_loss": torch.tensor(loss)}, strategy=strategy)
        is_best = callback.check_monitor_top_k(trainer, current)
        if is_best:
            path = str(tmp_path / "best.ckpt")
            callback.best_k_models, callback.kth_best_model_path = {path: current}, path
            callback.best_model_score = current
        return is_best

    return validate


def test_of_two_equal_accuracies_the_lower_loss_is_best_and_of_two_equal_losses_the_later(best):
    assert best(0.6, 2.0)
    assert best(0.8, 1.0)
    assert not best(0.8, 1.5)
    assert not best(0.6, 0.1)
    assert best(0.8, 0.5)
    assert best(0.8, 0.5)
    assert best(1.0, 3.0)


def test_the_loss_of_the_best_comes_back_with_a_checkpoint(tmp_path):
    callback = RunCheckpoint(tmp_path, "best", monitor=Score("accuracy", "Accuracy"))
    callback.best_loss, path = 0.25, tmp_path / "best.ckpt"
    path.touch()
    callback.best_k_models = {str(path): torch.tensor(0.5)}
    resumed = RunCheckpoint(tmp_path, "best", monitor=Score("accuracy", "Accuracy"))
    resumed.on_load_checkpoint(SimpleNamespace(ckpt_path=str(path)), None, {"global_step": 7})
    resumed.load_state_dict(callback.state_dict())
    assert resumed.best_loss == 0.25


def test_a_resume_from_another_checkpoint_than_the_last_keeps_that_one_as_the_last(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for name, step in (("best", 20), ("last", 50)):
        AtomicCheckpointIO().save_checkpoint(checkpoint(float(step)) | {"global_step": step}, old / f"{name}.ckpt")
    last = RunCheckpoint(new, "last")
    last.on_load_checkpoint(SimpleNamespace(ckpt_path=str(old / "best.ckpt")), None, {"global_step": 20})
    last.load_state_dict(RunCheckpoint(old, "last").state_dict())
    assert AtomicCheckpointIO().load_checkpoint(new / "last.ckpt")["global_step"] == 20
    # A copy is as old as the checkpoint: it must not be newer than one of more steps.
    assert (new / "last.ckpt").stat().st_mtime_ns == (old / "best.ckpt").stat().st_mtime_ns


@pytest.mark.parametrize(("resumed", "is_kept"), [(20, False), (50, True)])
def test_a_best_checkpoint_that_was_written_after_the_resumed_one_is_of_another_training(tmp_path, resumed, is_kept):
    old, new = tmp_path / "old", tmp_path / "new"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0) | {"global_step": 30}, old / "best.ckpt")
    best = RunCheckpoint(new, "best", monitor=Score("accuracy", "Accuracy"))
    best.on_load_checkpoint(SimpleNamespace(ckpt_path=str(old / "epoch.ckpt")), None, {"global_step": resumed})
    best.load_state_dict(RunCheckpoint(old, "best", monitor=Score("accuracy", "Accuracy")).state_dict())
    assert (new / "best.ckpt").exists() == is_kept
