"""The record of a run: what a checkpoint brings back, and what results.json gets."""

import json
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from vit.objectives import ViTClassifier
from vit.objectives.classify.evaluation import Evaluation
from vit.runs.record import RunRecord

# The state in the checkpoints of earlier versions, under this key.
KEY = "RunRecord"
STATE = {
    "measured": {"seconds": 7.0, "training_seconds": 5.0, "images": 100, "flop": 10**15, "val_accuracy": 0.5},
    "history": {
        "train": [{"epoch": 2.0, "step": 10, "loss": 1.0, "lr": 0.1}],
        "val": [{"epoch": 2.0, "step": 10, "loss": 1.5, "accuracy": 0.5}],
    },
}
FIELDS = [
    *("test_accuracy", "test_accuracy_views", "test_views", "val_accuracy", "seed", "epochs", "steps", "seconds"),
    *("petaflop", "images_per_second", "parameters", "device", "devices", "precision", "torch", "objective"),
    *("scores", "scored"),
]


@pytest.fixture
def record(tmp_path) -> RunRecord:
    return RunRecord(tmp_path / "run", {"seed": 3}, "", {})


@pytest.fixture
def trainer() -> SimpleNamespace:
    datamodule = SimpleNamespace(sets={"train": SimpleNamespace(labels=torch.zeros(50))})
    state = SimpleNamespace(fn=TrainerFn.FITTING)
    counts = {"global_step": 10, "world_size": 1, "fast_dev_run": False, "precision": "32-true"}
    return SimpleNamespace(datamodule=datamodule, state=state, callbacks=[], **counts)


@pytest.fixture
def module() -> ViTClassifier:
    evaluation = Evaluation(2, torch.device("cpu"))
    evaluation.update(torch.tensor([[9.0, 0]]), torch.tensor([0]))
    classifier = ViTClassifier(num_classes=2, image_size=2, patch_size=2, embed_dim=4, depth=1, num_heads=1)
    classifier.evaluation = evaluation
    return classifier


def results(record: RunRecord) -> dict:
    return json.loads((record.folder / "results.json").read_text())


def test_the_state_of_a_checkpoint_is_continued(record):
    assert record.state_key == KEY
    record.load_state_dict(STATE)
    assert record.state_dict() == STATE
    assert record.measurements.images_per_second == 20
    assert record.measurements.last_step("val") == 10


def test_a_training_writes_all_fields_in_their_order(record, trainer, module):
    record.load_state_dict(STATE)
    record.measurements.start_clocks()
    record.on_train_end(trainer, module)
    written = results(record)
    assert list(written) == FIELDS
    assert (written["epochs"], written["steps"], written["seconds"], written["petaflop"]) == (2.0, 10, 7.0, 1.0)
    assert (written["val_accuracy"], written["parameters"], written["seed"]) == (0.5, 326, 3)


def test_a_stopped_training_writes_the_exception_until_it_is_resumed(record, trainer, module, capsys):
    record.on_exception(trainer, module, KeyboardInterrupt())  # before its first step
    assert not record.folder.exists()
    assert capsys.readouterr().out == ""
    record.load_state_dict(STATE)
    record.measurements.start_clocks()
    record.on_exception(trainer, module, KeyboardInterrupt())
    assert list(results(record)) == [*FIELDS, "stopped"]
    assert results(record)["stopped"] == "KeyboardInterrupt"
    assert results(record)["scores"] is None  # those of a part of the images, perhaps
    assert capsys.readouterr().out == "stopped before the first checkpoint: start again\n"
    record.on_train_end(trainer, module)
    assert list(results(record)) == FIELDS


def test_a_finished_run_says_so(record, trainer, module):
    record.load_state_dict(STATE)
    record.write_results(trainer, module, finished=True)
    assert list(results(record)) == [*FIELDS, "finished"]
    assert results(record)["finished"] is True
    assert results(record)["scores"]["accuracy"] == 1.0


def test_a_test_without_a_training_writes_its_facts_and_its_machine(record, trainer, module):
    trainer.state.fn = TrainerFn.TESTING
    record.on_test_end(trainer, module)
    written = results(record)
    assert (written["test_accuracy"], written["seed"], written["precision"]) == (1.0, 3, "32-true")
    assert "epochs" not in written


def test_what_was_made_worse_on_purpose_is_kept(record, trainer, module):
    trainer.datamodule.made_worse = ["2 of 10 training labels are wrong (seed 0)"]
    record.load_state_dict(STATE)
    record.measurements.start_clocks()
    record.on_train_end(trainer, module)
    assert results(record)["made_worse"] == ["2 of 10 training labels are wrong (seed 0)"]


@pytest.mark.parametrize(("policy", "late", "epochs"), [("randaugment", 1, 1.0), ("randaugment", 3, 0.0)])
def test_the_epochs_with_a_policy_that_begins_later_are_counted(record, trainer, module, policy, late, epochs):
    trainer.datamodule.augmentation = {"policy": policy, "policy_from": late}
    record.load_state_dict(STATE)
    record.measurements.start_clocks()
    record.on_train_end(trainer, module)
    assert results(record)["policy_epochs"] == epochs


@pytest.mark.parametrize("augmentation", [{"policy": "none", "policy_from": 1}, {"policy": "x", "policy_from": 0}])
def test_no_policy_and_one_from_the_start_are_not_counted(record, trainer, module, augmentation):
    trainer.datamodule.augmentation = augmentation
    record.load_state_dict(STATE)
    record.measurements.start_clocks()
    record.on_train_end(trainer, module)
    assert list(results(record)) == FIELDS


def test_the_epoch_with_which_a_policy_begins_is_a_line(record, trainer, module, capsys):
    trainer.datamodule.augmentation = {"policy": "randaugment", "policy_from": 2}
    for trainer.current_epoch in range(4):
        record.on_train_epoch_start(trainer, module)
    assert capsys.readouterr().out == "randaugment begins after 2 epochs\n"
