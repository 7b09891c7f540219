"""The small callbacks of a run, and the order of all."""

from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn

from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.training.callbacks import ImagesPerSecondBar, ParameterSummary, SeededSteps, StopAtNaN


def draw(seed: int, epoch: int, batch: int, rank: int) -> float:
    trainer = SimpleNamespace(current_epoch=epoch, global_rank=rank)
    SeededSteps(seed).on_train_batch_start(trainer, None, None, batch)
    return torch.rand(()).item()


def test_draws_differ_with_the_seed_the_epoch_the_batch_and_the_process_and_repeat_with_all_four():
    keys = [(3, 0, 1, 0), (4, 0, 1, 0), (3, 1, 1, 0), (3, 0, 2, 0), (3, 0, 1, 1)]
    draws = [draw(*key) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [draw(*key) for key in keys]


def test_the_seed_of_a_step_is_the_one_of_earlier_versions():
    draw(3, 0, 1, 0)
    assert torch.initial_seed() == 8445513253293614028


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


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_epoch_end"])
def test_the_host_reads_before_validation_and_checkpoints(steps, hook):
    stop, trainer, module = steps(1.0, float("nan"), 1.0, float("inf"))
    with pytest.raises(ValueError, match="no longer finite, first at step 2: try a lower"):
        getattr(stop, hook)(trainer, module)


def test_the_host_reads_every_fifty_steps(steps):
    steps(*[float("nan")] * 49)
    with pytest.raises(ValueError, match="first at step 1:"):
        steps(1.0)


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


@pytest.mark.parametrize(("progress", "left"), [(0.25, None), (0.3, "0:07:00"), (0.75, "0:00:15"), (1.0, "0:00:00")])
def test_the_bar_says_how_long_the_rest_of_the_training_takes(monkeypatch, progress, left):
    """A quarter was done before a resume, and 30 s have gone by since."""
    bar = ImagesPerSecondBar()
    bar.start, bar.done_before = 100.0, 0.25
    monkeypatch.setattr("vit.training.callbacks.time.monotonic", lambda: 130.0)
    assert bar._time_left(progress) == left


def test_a_summary_has_the_modules_and_their_parameters_and_no_count_of_operations(capsys):
    module = LightningModule()
    module.network = torch.nn.Linear(2, 3)
    trainer = SimpleNamespace(strategy=None, is_global_zero=True)
    ParameterSummary().on_fit_start(trainer, module)
    assert capsys.readouterr().out == "  network: Linear, 9 parameters\n"


@pytest.mark.parametrize("not_counted", [0, 1])  # in a checkpoint after a validation, and after a step
def test_a_resume_with_batches_of_another_size_counts_those_of_the_loader(not_counted):
    images = torch.zeros(13, 1, 2, 2, dtype=torch.uint8)
    loader = MemoryLoader(images, torch.zeros(13).long(), BatchSampler(13, 2, shuffle=True))
    loader.load_state_dict({"served": 2, "shift": 0, "global_size": 3})
    counts = SimpleNamespace(ready=2, started=2, processed=2, completed=2 - not_counted)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=counts)))
    SeededSteps(0).on_train_start(SimpleNamespace(train_dataloader=loader, fit_loop=loop), None)
    assert vars(counts) == {"ready": 3, "started": 3, "processed": 3, "completed": 3 - not_counted}


def test_the_host_reads_before_any_checkpoint_such_as_that_after_a_signal(steps):
    stop, trainer, module = steps(1.0, float("nan"))
    with pytest.raises(ValueError, match="no longer finite, first at step 2"):
        stop.on_save_checkpoint(trainer, module, {})


def test_the_bar_begins_with_the_progress_that_a_resumed_module_knows_at_its_first_step():
    bar, module = ImagesPerSecondBar(), SimpleNamespace(progress=0.5)
    bar.start, bar.done_before = 0.0, None
    assert bar._time_left(0.5) is None
    bar.on_train_batch_start(SimpleNamespace(), module, None, 0)
    module.progress = 0.6
    bar.on_train_batch_start(SimpleNamespace(), module, None, 1)
    assert bar.done_before == 0.5
