"""The moving average of the weights."""

import copy
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from tests.tiny import TINY, run_command
from vit.training.ema import EMA


@pytest.fixture(scope="module")
def averaged(module_folder) -> SimpleNamespace:
    """A run with an average: the head's bias after each step and in each validation, and the folder of the run."""
    steps, validations, update, swap_in = [], [], EMA.on_train_batch_end, EMA.on_validation_start

    def noting_update(self, trainer, pl_module, *args):
        steps.append(pl_module.network.head.bias.detach().clone())
        update(self, trainer, pl_module, *args)

    def noting_swap(self, trainer, pl_module):
        swap_in(self, trainer, pl_module)
        validations.append(pl_module.network.head.bias.detach().clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EMA, "on_train_batch_end", noting_update)
        patch.setattr(EMA, "on_validation_start", noting_swap)
        cli = run_command("fit", *TINY, "--data.batch_size", "300", "--model.ema_decay", "0.3")
    final = cli.model.network.head.bias.detach()
    checkpoints = module_folder / cli.run_folder / "checkpoints"
    return SimpleNamespace(steps=steps, validations=validations, final=final, checkpoints=checkpoints)


def average_of(steps: list[torch.Tensor], decay: float) -> torch.Tensor:
    average = torch.zeros_like(steps[0])  # a bias starts at zero
    for number, weights in enumerate(steps, start=1):
        kept = min(decay, (1 + number) / (10 + number))
        average = kept * average + (1 - kept) * weights
    return average


def test_validation_sees_the_average_and_training_goes_on_with_the_weights(averaged):
    steps, epoch = averaged.steps, len(averaged.steps) // 2
    torch.testing.assert_close(averaged.validations[0], average_of(steps[:epoch], 0.3))
    torch.testing.assert_close(averaged.validations[1], average_of(steps, 0.3))
    torch.testing.assert_close(averaged.final, average_of(steps, 0.3))


@pytest.mark.parametrize("name", ["best", "last"])
def test_the_checkpoint_holds_the_average_as_its_weights_and_the_training_weights_beside(averaged, name):
    checkpoint = torch.load(averaged.checkpoints / f"{name}.ckpt", weights_only=True)
    steps = averaged.steps[: checkpoint["global_step"]]
    torch.testing.assert_close(checkpoint["state_dict"]["network.head.bias"], average_of(steps, 0.3))
    assert torch.equal(checkpoint["training_weights"]["network.head.bias"], steps[-1])


def test_a_resumed_training_counts_no_step_twice(tmp_path, monkeypatch):
    counted, update = [], EMA.on_train_batch_end

    def counting(self, trainer, pl_module, *args):
        before = self.last_step
        update(self, trainer, pl_module, *args)
        counted.append((self.last_step, self.last_step != before))

    monkeypatch.setattr(EMA, "on_train_batch_end", counting)
    monkeypatch.chdir(tmp_path)
    command = ["fit", *TINY, "--data.batch_size", "300", "--model.ema_decay", "0.3", "--experiment", "resumed"]
    command += ["--trainer.accumulate_grad_batches", "2", "--trainer.max_epochs", "9", "--trainer.max_steps"]
    run_command(*command, "2")
    counted.clear()
    run_command(*command, "4", "--ckpt_path", "runs/resumed/version_0")
    assert [step for step, is_counted in counted if is_counted] == [3, 4]


def test_without_ema_the_checkpoint_holds_no_training_weights(finished):
    assert "training_weights" not in torch.load(finished / "checkpoints/last.ckpt", weights_only=True)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_outside_of_zero_and_one_is_refused(decay):
    with pytest.raises(ValueError, match=rf"ema_decay \({decay}\) must be between 0 and 1"):
        EMA(decay)


@pytest.mark.parametrize("validates", [False, True])
def test_the_average_of_a_model_in_bfloat16_is_kept_in_float32(validates):
    module = torch.nn.Module()
    module.network = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    trainer = SimpleNamespace(global_step=10_000, state=SimpleNamespace(fn=TrainerFn.FITTING))
    ema = EMA(0.999)
    torch.nn.init.ones_(module.network.weight)
    ema.on_fit_start(trainer, module)
    torch.nn.init.constant_(module.network.weight, 2)
    for trainer.global_step in range(10_001, 10_101):
        ema.on_train_batch_end(trainer, module)
        if validates:
            ema.on_validation_start(trainer, module)
            ema.on_validation_end(trainer, module)
            assert module.network.weight.item() == 2
    # 100 steps of a thousandth of the way from 1 to 2; after 1 comes 1 + 1 / 128 in bfloat16.
    assert ema.average["network.weight"].item() == pytest.approx(2 - 0.999**100)
    checkpoint = {"state_dict": {}}
    ema.save_average(module, checkpoint)
    assert checkpoint["state_dict"]["network.weight"].dtype == torch.bfloat16


def test_a_resumed_average_of_a_model_in_bfloat16_is_not_rounded():
    module = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    trainer = SimpleNamespace(global_step=10_000, state=SimpleNamespace(fn=TrainerFn.FITTING))
    ema, resumed = EMA(0.999), EMA(0.999)
    torch.nn.init.ones_(module.weight)
    ema.on_fit_start(trainer, module)
    torch.nn.init.constant_(module.weight, 2)
    trainer.global_step = 10_001
    ema.on_train_batch_end(trainer, module)
    checkpoint = {"state_dict": {}}
    ema.on_save_checkpoint(trainer, module, checkpoint)
    ema.save_average(module, checkpoint)
    checkpoint = copy.deepcopy(checkpoint)  # as a file does
    module.load_state_dict(checkpoint["state_dict"])
    resumed.on_load_checkpoint(trainer, module, checkpoint)
    resumed.on_fit_start(trainer, module)
    assert module.weight.item() == 2
    assert resumed.average["weight"].item() == ema.average["weight"].item() == pytest.approx(1.001)


def test_the_average_keeps_no_graph_of_the_steps():
    module = torch.nn.Linear(2, 1)
    average = EMA(0.9)
    average.on_fit_start(SimpleNamespace(global_step=0), module)
    average.on_train_batch_end(SimpleNamespace(global_step=1), module)
    assert all(weights.grad_fn is None and not weights.requires_grad for weights in average.average.values())
