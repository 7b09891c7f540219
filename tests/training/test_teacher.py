"""A teacher learns first, the model learns from it then, and only the model is left."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import vit
from vit.training import ViTClassifier
from vit.training.flop import step_flop
from vit.training.teacher import Teacher, distillation_loss

SIZES = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 8, "depth": 1, "num_heads": 2}

TAUGHT = [
    *("fit", "--data", "Digits", "--data.batch_size", "300", "--trainer.max_steps", "10", "--trainer.max_epochs=-1"),
    *("--model.teacher", "0.4", "--model.ema_decay", "0.9"),
    *("--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "1", "--model.num_heads", "2"),
    *("--trainer.accelerator", "cpu", "--trainer.precision", "32-true"),
]


def copied(module):
    return [tensor.clone() for tensor in module.state_dict().values()]


def same(before, after):
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_teacher_learns_for_its_share_of_the_steps_and_the_model_for_the_rest(run, monkeypatch, optimizer):
    states, training_step = [], ViTClassifier.training_step

    def noting_step(self, batch, batch_idx):
        states.append((self.teacher_learns, copied(self.teacher), copied(self.vit)))
        return training_step(self, batch, batch_idx)

    monkeypatch.setattr(ViTClassifier, "training_step", noting_step)
    run(*TAUGHT, "--model.optimizer", optimizer, "--trainer.limit_test_batches", "0")
    assert [learns for learns, _, _ in states] == [True] * 4 + [False] * 6
    changes = [(not same(t, u), not same(v, w)) for (_, t, v), (_, u, w) in pairwise(states)]
    # Both rates are zero at their first step, where only the statistics of the teacher's norms move.
    assert changes == [(True, False)] * 4 + [(False, False)] + [(False, True)] * 4


def test_the_loss_is_three_tenths_that_of_the_labels_and_seven_that_of_the_softened_teacher():
    logits, of_teacher = torch.randn(5, 7), torch.randn(5, 7)
    wanted = torch.exp(of_teacher / 2) / torch.exp(of_teacher / 2).sum(1, keepdim=True)
    divergence = -(wanted * torch.log_softmax(logits / 2, 1)).sum(1).mean()
    assert_close(distillation_loss(torch.tensor(2.0), logits, of_teacher), 0.3 * 2.0 + 0.7 * 4 * divergence)


def test_a_teacher_that_judges_has_no_gradient_and_learns_nothing_from_it():
    teacher = Teacher(in_channels=3, num_classes=5, image_size=(8, 11)).train()
    before = copied(teacher)
    assert not teacher.judge(torch.randn(4, 3, 8, 11)).requires_grad
    assert same(before, copied(teacher))


def test_its_operations_count_as_long_as_it_is_asked():
    alone, model = ViTClassifier(**SIZES), ViTClassifier(teacher=0.5, **SIZES)
    before = copied(model.teacher)
    first = 2 * 64 * (9 * 24)
    stages = sum(2 * 9 * (4**i * a * b + 4 ** (i - 1) * b * b) for i, a, b in [(3, 24, 48), (2, 48, 96), (1, 96, 128)])
    forward = first + stages + 2 * 128 * 10
    assert step_flop(model) == step_flop(alone) + forward
    model.teacher_learns = True
    assert step_flop(model) == 3 * forward
    assert same(before, copied(model.teacher))


def test_the_operations_of_a_run_are_those_of_its_steps(run):
    cli = run(*TAUGHT, "--trainer.limit_test_batches", "0")
    alone, model = ViTClassifier(**SIZES), ViTClassifier(teacher=0.5, **SIZES)
    forward = step_flop(model) - step_flop(alone)
    # The teacher learns for four of ten batches.
    expected = 3 * forward * 4 * 300 + step_flop(model) * 6 * 300
    assert cli.record.measured["flop"] == expected


def test_what_is_left_is_the_model(run, folder, capsys):
    cli = run(*TAUGHT, "--model.teacher", "0.6")
    assert "(its teacher learns)" in capsys.readouterr().out
    checkpoint = cli.run_folder / "checkpoints" / "last.ckpt"
    assert not any(name.startswith("teacher") for name in torch.load(checkpoint)["training_weights"])
    model = vit.load(checkpoint)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(model(images), cli.model.vit.eval()(images))
    results = json.loads((cli.run_folder / "results.json").read_text())
    assert results["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    run("test", "--ckpt_path", checkpoint)
    assert json.loads((cli.run_folder / "results.json").read_text())["test_accuracy"] == results["test_accuracy"]


# Lightning's own callback, which finds itself in another folder.
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_resumed_while_the_teacher_learns_or_later_ends_with_the_same_weights(run, folder):
    command = [*TAUGHT, "--model.optimizer", "muon", "--trainer.limit_test_batches", "0"]
    command += ["--trainer.callbacks+", "ModelCheckpoint"]
    command += ["--trainer.callbacks.every_n_train_steps", "1", "--trainer.callbacks.save_top_k", "-1"]
    whole = copied(run(*command, "--trainer.callbacks.dirpath", "steps").model)
    for step in (2, 7):
        checkpoint = next((folder / "steps").glob(f"*step={step}.ckpt"))
        resumed = run(*command, "--trainer.callbacks.dirpath", f"resumed_at_{step}", "--ckpt_path", checkpoint)
        assert same(whole, copied(resumed.model))


def test_images_too_small_and_several_devices_are_refused():
    with pytest.raises(ValueError, match="images of 6 x 9 pixels are too small for a teacher"):
        ViTClassifier(teacher=0.5, image_size=(6, 9), patch_size=3)
    model = ViTClassifier(teacher=0.5, **SIZES)
    model._trainer = SimpleNamespace(world_size=2, strategy=None)
    with pytest.raises(ValueError, match=r"teacher \(0.5\) works on one device, not on 2"):
        model.configure_optimizers()
