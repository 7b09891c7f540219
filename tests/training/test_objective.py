"""What all objectives share, in a process that is one of several."""

import csv
from types import SimpleNamespace

import pytest
import torch

from tests.tiny import CPU, MODEL, run_command
from vit.objectives import ImageCompleter, ViTClassifier


@pytest.fixture
def module():
    """A small objective."""
    return ImageCompleter(8, 1, palette_size=4, embed_dim=12, depth=1, num_heads=3)


def among(module, **reduced):
    """Put the objective among processes: what ``reduce`` gives, by the name of the operation."""
    strategy = SimpleNamespace(reduce=lambda tensor, reduce_op: reduced[reduce_op](tensor))
    module._trainer = SimpleNamespace(strategy=strategy)


def test_a_loss_is_over_the_mean_count_of_all_processes(module):
    losses, counted = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, False, True])
    assert module.mean_of_counted(losses, counted) == 2.5
    # The other process counts six losses: on average there are four, and DDP takes the mean of both gradients.
    among(module, mean=lambda count: (count + 6) / 2)
    assert module.mean_of_counted(losses, counted) == 5 / 4


def test_the_sums_of_an_evaluation_are_those_of_all_processes(module, monkeypatch):
    among(module, sum=lambda tensor: tensor + 10)
    sums = [torch.tensor(1.0), torch.tensor([2.0, 3.0])]
    logged = {}
    module.evaluation = SimpleNamespace(sums=lambda: sums, loss=0.5, bits_per_pixel=0.7)
    monkeypatch.setattr(module, "log_dict", lambda values, **_: logged.update(values))
    module._log_evaluation("val")
    assert [tensor.tolist() for tensor in sums] == [11, [12, 13]]
    assert logged == {"val_bits_per_pixel": 0.7, "val_loss": 0.5}


def test_the_training_loss_in_the_log_is_the_mean_of_the_steps_since_the_last_one(tmp_path, monkeypatch):
    losses, training_loss = [], ViTClassifier.training_loss

    def noting(self, batch):
        losses.append(training_loss(self, batch))
        return losses[-1]

    monkeypatch.setattr(ViTClassifier, "training_loss", noting)
    monkeypatch.chdir(tmp_path)
    every = ["--trainer.log_every_n_steps", "3", "--trainer.max_epochs", "3"]  # of 4 steps
    run_command("fit", *MODEL, *CPU, "--data", "Digits", "--data.batch_size", "300", *every, "--experiment", "logged")
    with (tmp_path / "runs/logged/version_0/metrics.csv").open() as file:
        logged = [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]
    assert logged == pytest.approx(torch.stack(losses).detach().reshape(4, 3).mean(dim=1).tolist(), rel=1e-5)
