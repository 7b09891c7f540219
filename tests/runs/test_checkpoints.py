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
