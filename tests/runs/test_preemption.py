"""A signal stops a training between two steps, and leaves a checkpoint."""

from types import SimpleNamespace

import pytest
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from vit.commands.training_cli import ViTCLI
from vit.data import Digits
from vit.objectives import ViTClassifier
from vit.runs import preemption
from vit.runs.checkpoints import RunCheckpoint
from vit.runs.preemption import Preemption

STOP, REQUEUE = "_sigterm_notifier_fn", "_slurm_sigusr_handler_fn"


@pytest.fixture
def trainer():
    """An epoch with a validation after the second batch."""
    return SimpleNamespace(
        _signal_connector=SimpleNamespace(),
        accumulate_grad_batches=1,
        check_val_every_n_epoch=1,
        fit_loop=SimpleNamespace(total_batch_idx=6),
        is_global_zero=True,
        is_last_batch=False,
        save_checkpoint=lambda path: path.touch(),
        state=SimpleNamespace(fn=TrainerFn.FITTING),
        val_check_batch=2,
        world_size=1,
    )


@pytest.fixture
def callback(tmp_path, trainer):
    callback = Preemption(tmp_path / "last.ckpt")
    callback.setup(trainer, None, "fit")
    return callback


def send(trainer, what):
    vars(trainer._signal_connector)[what](15, None)


def end_batch(callback, trainer, number):
    callback.on_train_batch_end(trainer, None, None, None, number)


def test_without_a_signal_nothing_is_written(callback, trainer):
    for number in range(4):
        end_batch(callback, trainer, number)
    callback.on_train_end(trainer, None)
    assert not callback.checkpoint.exists()


def test_a_signal_stops_after_the_step(callback, trainer):
    send(trainer, STOP)
    assert not callback.checkpoint.exists()
    with pytest.raises(SIGTERMException):
        end_batch(callback, trainer, 0)
    assert callback.checkpoint.exists()


@pytest.mark.parametrize(
    "pending",
    [
        {"is_last_batch": True, "val_check_batch": 100},
        {"val_check_batch": 1},
        {"accumulate_grad_batches": 2},
        {"val_check_batch": 7, "check_val_every_n_epoch": None},
    ],
)
def test_a_validation_and_gradients_that_add_up_are_waited_for(callback, trainer, pending):
    vars(trainer).update(pending)
    send(trainer, STOP)
    end_batch(callback, trainer, 0)
    assert not callback.checkpoint.exists()
    vars(trainer).update(accumulate_grad_batches=1, val_check_batch=float("inf"), is_last_batch=False)
    with pytest.raises(SIGTERMException):
        end_batch(callback, trainer, 1)


def test_a_signal_in_an_epoch_of_one_batch_stops_at_its_end(callback, trainer):
    trainer.is_last_batch, trainer.num_training_batches = True, 1
    send(trainer, STOP)
    end_batch(callback, trainer, 0)
    with pytest.raises(SIGTERMException):
        callback.on_train_epoch_end(trainer, None)
    trainer.num_training_batches = 100  # one of the next batches is one to stop after
    callback.on_train_epoch_end(trainer, None)
    assert not callback.checkpoint.exists()  # that of the epoch is there


def test_the_checkpoint_of_an_epoch_is_written_before_a_signal_stops_it(tmp_path):
    cli = SimpleNamespace(run_folder=tmp_path, datamodule=Digits(), model=ViTClassifier)
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=ViTCLI._checkpoints(cli))
    assert [type(each) for each in trainer.checkpoint_callbacks] == [RunCheckpoint, RunCheckpoint, Preemption]


def test_a_signal_in_the_last_step_stops_before_the_test(callback, trainer):
    send(trainer, STOP)
    with pytest.raises(SIGTERMException):
        callback.on_train_end(trainer, None)
    assert not callback.checkpoint.exists()  # that of the last step is there


def test_a_signal_in_the_test_stops_at_once(callback, trainer):
    trainer.state.fn = TrainerFn.TESTING
    with pytest.raises(SIGTERMException):
        send(trainer, STOP)


@pytest.mark.parametrize(
    ("array", "job"), [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "5_2")]
)
def test_slurms_signal_puts_the_job_back_into_the_queue_after_the_checkpoint(
    callback, trainer, monkeypatch, array, job
):
    for name, value in ({"SLURM_JOB_ID": "7"} | array).items():
        monkeypatch.setenv(name, value)
    asked = []

    def run(command, check):
        assert callback.checkpoint.exists()
        asked.append(command)

    monkeypatch.setattr(preemption.subprocess, "run", run)
    send(trainer, REQUEUE)
    send(trainer, STOP)  # which Slurm sends next
    with pytest.raises(SIGTERMException):
        end_batch(callback, trainer, 0)
    assert asked == [["scontrol", "requeue", job]]


def test_one_process_that_was_asked_stops_all(callback, trainer):
    trainer.world_size = 2
    trainer.strategy = SimpleNamespace(root_device="cpu", reduce=lambda tensor, reduce_op: tensor + 1)
    trainer.val_check_batch = float("inf")
    end_batch(callback, trainer, 6)  # they agree after every fourth batch
    with pytest.raises(SIGTERMException):
        end_batch(callback, trainer, 7)


@pytest.mark.parametrize("accumulated", [2, 3, 4])
@pytest.mark.parametrize("before", [0, 625, 1250])
def test_several_processes_stop_soon_in_every_epoch_also_if_gradients_add_up(callback, trainer, accumulated, before):
    trainer.world_size, trainer.accumulate_grad_batches = 2, accumulated
    trainer.val_check_batch = float("inf")
    trainer.strategy = SimpleNamespace(root_device="cpu", reduce=lambda tensor, reduce_op: tensor + 1)

    def train() -> None:
        for number in range(preemption.EVERY * accumulated):
            trainer.fit_loop.total_batch_idx = before + number
            end_batch(callback, trainer, number)

    with pytest.raises(SIGTERMException):
        train()
