"""What watches over each step, where a GPU is not to be waited for."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from vit.training.callbacks import StopAtNaN


class OnAnotherDevice:
    """A module on the CPU that says it is elsewhere, as far as reading goes."""

    hparams = SimpleNamespace(lr=0.1)

    @property
    def device(self):
        return SimpleNamespace(type="cuda")


@pytest.fixture
def steps():
    """Go through steps with these losses, the first of which is number 1."""
    module = OnAnotherDevice()
    trainer = SimpleNamespace(global_step=0, lightning_module=module, state=SimpleNamespace(fn=TrainerFn.FITTING))
    watch = StopAtNaN()
    watch.first_bad_step = torch.full((), -1)

    def steps(*losses):
        for loss in losses:
            trainer.global_step += 1
            outputs = {"loss": torch.tensor(loss)}
            watch.on_train_batch_end(trainer, module, outputs, None, trainer.global_step - 1)
        return watch, trainer, module

    return steps


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_epoch_end"])
def test_the_host_looks_before_validation_and_checkpoints(steps, hook):
    watch, trainer, module = steps(1.0, float("nan"), 1.0, float("inf"))
    with pytest.raises(ValueError, match="no longer finite, first at step 2: try a lower"):
        getattr(watch, hook)(trainer, module)


def test_and_every_fifty_steps(steps):
    steps(*[float("nan")] * 49)
    with pytest.raises(ValueError, match="first at step 1:"):
        steps(1.0)


def test_a_finite_loss_stops_nothing(steps):
    watch, trainer, module = steps(*[1.0] * 50)
    watch.on_validation_start(trainer, module)
    watch.on_train_epoch_end(trainer, module)
