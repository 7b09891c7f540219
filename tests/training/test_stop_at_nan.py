"""A loss that is not finite stops the training before a checkpoint is written."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from vit.training.stop_at_nan import StopAtNaN


class OnAnotherDevice:
    """A module whose device is a GPU, by its name."""

    hparams = SimpleNamespace(lr=0.1)

    @property
    def device(self):
        return SimpleNamespace(type="cuda")


@pytest.fixture
def steps():
    """Go through steps with these losses, the first of which is number 1."""
    module = OnAnotherDevice()
    trainer = SimpleNamespace(global_step=0, lightning_module=module, state=SimpleNamespace(fn=TrainerFn.FITTING))
    stop = StopAtNaN()
    stop.first_bad_step = torch.full((), -1)

    def steps(*losses):
        for loss in losses:
            trainer.global_step += 1
            outputs = {"loss": torch.tensor(loss)}
            stop.on_train_batch_end(trainer, module, outputs, None, trainer.global_step - 1)
        return stop, trainer, module

    return steps


def test_a_training_starts_without_a_bad_step():
    stop = StopAtNaN()
    stop.on_fit_start(SimpleNamespace(), SimpleNamespace(device=torch.device("cpu")))
    assert stop.first_bad_step == -1


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_epoch_end"])
def test_the_host_reads_before_validation_and_checkpoints(steps, hook):
    stop, trainer, module = steps(1.0, float("nan"), 1.0, float("inf"))
    with pytest.raises(ValueError, match="no longer finite, first at step 2: try a lower"):
        getattr(stop, hook)(trainer, module)


def test_the_host_reads_every_fifty_steps(steps):
    steps(*[float("nan")] * 49)
    with pytest.raises(ValueError, match="first at step 1:"):
        steps(1.0)


def test_the_host_reads_before_any_checkpoint_such_as_that_after_a_signal(steps):
    stop, trainer, module = steps(1.0, float("nan"))
    with pytest.raises(ValueError, match="no longer finite, first at step 2"):
        stop.on_save_checkpoint(trainer, module, {})


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_validation_that_shows_that_the_last_step_diverged_stops_before_its_checkpoint(steps, loss):
    stop, trainer, module = steps(1.0, 1.0)
    trainer.sanity_checking, trainer.callback_metrics = False, {"val_loss": torch.tensor(loss)}
    with pytest.raises(
        ValueError, match=r"the validation loss \((nan|inf)\) is no longer finite, first at step 2: try"
    ):
        stop.on_validation_end(trainer, module)
    trainer.callback_metrics = {"val_loss": torch.tensor(1e30)}
    stop.on_validation_end(trainer, module)


def test_a_finite_loss_stops_nothing(steps):
    stop, trainer, module = steps(*[1.0] * 50)
    stop.on_validation_start(trainer, module)
    stop.on_train_epoch_end(trainer, module)
