"""The LightningModule: its loss, its schedule, its checkpoints."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from lightning.pytorch.callbacks import Timer
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import precision_score, recall_score, roc_curve

import vit
from tests.tiny import CPU, MODEL
from vit.objectives import ViTClassifier

SIZES = {"image_size": 6, "patch_size": 3, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 5}

HARD = [
    *("--data", "Digits", "--data.batch_size", "300", "--data.mixup", "0.8", "--data.mix_until", "0.6"),
    *(*MODEL, "--model.depth", "1", "--model.patch_drop", "0.5", "--model.patch_drop_until", "0.7", *CPU),
    *("--trainer.limit_test_batches", "0"),
]


@pytest.fixture
def steps(monkeypatch) -> list[tuple[bool, float]]:
    """Whether the images were mixed, and the share of patches left out, for each training step of a test."""
    seen, training_step = [], ViTClassifier.training_step

    def noting_step(self, batch, batch_idx):
        seen.append((batch[1].ndim == 2, self.network.patch_drop.rate))
        return training_step(self, batch, batch_idx)

    monkeypatch.setattr(ViTClassifier, "training_step", noting_step)
    return seen


def test_images_are_normalised_here_whether_bytes_or_floats():
    model = ViTClassifier(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], **SIZES).eval()
    pixels = torch.randint(0, 256, (2, 3, 6, 6), dtype=torch.uint8)
    normalised = torch.stack([(pixels[:, i] / 255 - 0.1 * (i + 1)) / (0.5 + 0.1 * i) for i in range(3)], dim=1)
    torch.testing.assert_close(model(pixels), model.network(normalised))
    torch.testing.assert_close(model(pixels / 255), model.network(normalised))


@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_cross_entropy_with_smoothed_hard_or_soft_targets(soft):
    model = ViTClassifier(label_smoothing=0.2, **SIZES)
    images = torch.rand(7, 3, 6, 6)
    targets = torch.rand(7, 5).softmax(1) if soft else torch.randint(0, 5, (7,))
    probabilities = targets if soft else F.one_hot(targets, 5)
    smoothed = 0.8 * probabilities + 0.2 / 5
    model._trainer = Trainer(log_every_n_steps=1000, accelerator="cpu", logger=False, enable_checkpointing=False)
    model.loss_sum, model.loss_count = torch.zeros(()), 0
    loss = model.training_step((images, targets), 0)
    expected = -(smoothed * model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_the_loss_weighs_the_classes_as_the_data_asks(run):
    cli = run("fit", "--data", "Digits", *MODEL, *CPU, "--data.balance", "loss", "--trainer.max_steps", "1")
    weights = cli.model.class_weights
    torch.testing.assert_close(weights, cli.datamodule.class_weights)
    images, labels = torch.rand(7, 1, 8, 8), torch.randint(0, 10, (7,))
    loss = cli.model.training_step((images, labels), 0)
    torch.testing.assert_close(loss, F.cross_entropy(cli.model(images), labels, weights))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_weighted_loss_of_two_processes_is_that_of_their_images_together(smoothing):
    module = ViTClassifier(label_smoothing=smoothing, **SIZES | {"num_classes": 3}).eval()
    module.class_weights = torch.tensor([0.2, 1.0, 5.0])
    images, labels = torch.rand(6, 3, 6, 6), torch.tensor([0, 0, 1, 2, 2, 1])
    weights = module.class_weights[labels]
    losses = F.cross_entropy(module(images), labels, label_smoothing=smoothing, reduction="none")
    module._trainer = SimpleNamespace(strategy=SimpleNamespace(reduce=lambda weight, reduce_op: weights.sum() / 2))
    of_each = [module.training_loss(part) for part in zip(images.split(3), labels.split(3), strict=True)]
    torch.testing.assert_close(sum(of_each) / 2, (weights * losses).sum() / weights.sum())


def test_the_weight_of_a_rare_class_leaves_the_smoothed_targets_of_other_images_as_they_are():
    module = ViTClassifier(label_smoothing=0.1, **SIZES | {"num_classes": 3})
    module.class_weights = torch.tensor([0.5, 0.6, 500.0])
    logits = torch.zeros(2, 3, requires_grad=True)
    module.forward = lambda images: logits
    optimizer = torch.optim.LBFGS([logits], max_iter=100)

    def closure():
        optimizer.zero_grad()
        loss = module.training_loss((None, torch.tensor([0, 1])))
        loss.backward()
        return loss

    optimizer.step(closure)
    rest = 0.1 / 3
    expected = torch.tensor([[0.9 + rest, rest, rest], [rest, 0.9 + rest, rest]])
    torch.testing.assert_close(logits.softmax(1), expected, atol=1e-3, rtol=0)


def test_the_weights_of_blended_images_are_those_of_their_parts():
    module = ViTClassifier(label_smoothing=0.1, **SIZES | {"num_classes": 3}).eval()
    module.class_weights = torch.tensor([0.2, 1.0, 5.0])
    images, shares = torch.rand(4, 3, 6, 6), torch.rand(4, 3).softmax(1)
    total, count = 0, 0
    for label in range(3):
        labels = torch.full((4,), label)
        losses = F.cross_entropy(module(images), labels, label_smoothing=0.1, reduction="none")
        weights = shares[:, label] * module.class_weights[label]
        total, count = total + (weights * losses).sum(), count + weights.sum()
    torch.testing.assert_close(module.training_loss((images, shares)), total / count)


def test_it_is_rebuilt_from_its_checkpoint_alone(tmp_path):
    model = ViTClassifier(lr=0.5, mean=[0.1, 0.2, 0.3], **SIZES)
    trainer = Trainer(accelerator="cpu", logger=False, max_epochs=0)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = ViTClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    images = torch.rand(2, 3, 6, 6)
    assert torch.equal(again.eval()(images), model.eval()(images))
    assert again.hparams.lr == 0.5


# Both end after six and seven of ten steps.
EXPECTED = [(True, 0.5)] * 6 + [(False, 0.5)] + [(False, 0.0)] * 3


def test_mixing_and_patch_drop_end_after_their_share_of_the_steps_and_stay_so_in_a_resumed_run(
    run, folder, steps, monkeypatch
):
    def save_checkpoints(self, *_):
        if self.trainer.global_step in (3, 8):
            self.trainer.save_checkpoint(f"step_{self.trainer.global_step}.ckpt")

    command = ["fit", *HARD, "--trainer.max_steps", "10"]
    with monkeypatch.context() as patch:
        patch.setattr(ViTClassifier, "on_train_batch_end", save_checkpoints)
        run(*command)
    assert steps == EXPECTED
    for step in (3, 8):
        steps.clear()
        run(*command, "--ckpt_path", f"step_{step}.ckpt")
        assert steps == EXPECTED[step:]


def test_a_limit_of_time_ends_mixing_patch_drop_and_the_training_which_is_validated_at_its_end(
    run, folder, steps, monkeypatch
):
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, stage="train": 10.0 * len(steps))  # a step takes 10 s
    cli = run("fit", *HARD, "--trainer.max_epochs", "-1", "--trainer.max_time", "00:00:01:40", "--experiment", "clock")
    assert steps == EXPECTED
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0
    checkpoint = torch.load(folder / "runs/clock/version_0/checkpoints/last.ckpt", weights_only=True)
    validated = checkpoint["callbacks"]["RunRecord"]["history"]["val"][-1]["step"]
    assert validated == checkpoint["global_step"] == 10


def test_gradients_of_several_batches_are_one_step_which_is_logged_once(run, folder):
    accumulating = ["--trainer.accumulate_grad_batches", "3", "--trainer.log_every_n_steps", "1"]
    cli = run("fit", *HARD, *accumulating, "--trainer.max_epochs", "2")
    # Four batches of an epoch are two steps: of three batches, and of the last one.
    points = cli.record.measurements.history["train"]
    assert [point["step"] for point in points] == [1, 2, 3, 4]


def test_the_loss_is_logged_at_the_end_of_an_epoch_even_if_nothing_is_logged_between(run, folder):
    cli = run("fit", *HARD, "--trainer.log_every_n_steps", "0", "--trainer.max_epochs", "2")
    assert [point["step"] for point in cli.record.measurements.history["train"]] == [4, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warmup": 5.0}, r"^warmup \(5.0\) must be in \[0, 1\): it is a share of the training, such as 0.05$"),
        ({"warmup": -0.1}, r"^warmup \(-0.1\) must be in"),
        ({"label_smoothing": 1.0}, r"^label_smoothing \(1.0\) must be in \[0, 1\): 0.1 is usual$"),
        ({"label_smoothing": -0.1}, r"^label_smoothing \(-0.1\) must be in"),
        ({"patch_drop_until": 0.0}, r"^patch_drop_until \(0.0\) must be in \(0, 1\]: to drop no patches, set patch_d"),
        ({"patch_drop_until": 1.1}, r"^patch_drop_until \(1.1\) must be in"),
        ({"lr": -1.0}, r"^lr \(-1.0\) must be a number of at least 0: 1e-3 is usual$"),
        ({"lr": float("inf")}, r"^lr \(inf\) must be a number of at least 0"),
        ({"weight_decay": -5.0}, r"^weight_decay \(-5.0\) must be a number of at least 0"),
        ({"betas": (0.9, 1.0)}, r"^betas \(1.0\) must be in \[0, 1\): 0.9 and 0.99 are usual$"),
        ({"betas": (-0.1, 0.9)}, r"^betas \(-0.1\) must be in"),
        ({"layer_decay": 0.0}, r"^layer_decay \(0.0\) must be in \(0, 1\]"),
        ({"layer_decay": 1.5}, r"^layer_decay \(1.5\) must be in"),
        ({"optimizer": "sgd"}, "^unknown optimizer 'sgd': choose 'adamw' or 'muon'$"),
        ({"test_views": "four"}, "^unknown test_views 'four': choose 'none', 'flip' or 'six'$"),
        ({"init": "zero"}, "^unknown init 'zero': choose 'glorot' or 'mimetic'$"),
        ({"decay": "step"}, "^unknown decay 'step': choose 'cosine', 'linear' or 'constant'$"),
    ],
)
def test_an_argument_out_of_its_range_is_an_error_before_training(arguments, message):
    with pytest.raises(ValueError, match=message):
        ViTClassifier(**arguments, **SIZES)


def test_compiled_blocks_keep_their_names_and_their_output():
    model = ViTClassifier(compile=True, **SIZES)
    names, images = list(model.state_dict()), torch.rand(2, 3, 6, 6)
    plain = model(images)
    model.configure_model()
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(images), plain)


def test_the_weights_to_start_from_are_taken_once():
    module = ViTClassifier(
        init_from="cifar10",
        image_size=32,
        patch_size=4,
        patch_stride=2,
        embed_dim=128,
        depth=6,
        num_heads=4,
        mlp_ratio=2,
    )
    module.setup("fit")
    with torch.no_grad():
        module.network.cls_token.fill_(7)
    module.setup("fit")
    assert (module.network.cls_token == 7).all()
    loaded = ViTClassifier(**module.hparams)
    loaded.on_load_checkpoint({"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()})
    loaded.load_state_dict(module.state_dict())
    loaded.setup("fit")
    assert (loaded.network.cls_token == 7).all()


@pytest.fixture
def zeros_and_ones(folder):
    """A hundred digits of two classes, as files."""
    digits = load_digits(n_class=2)
    for number, (image, label) in enumerate(zip(digits.images[:100] * 255 / 16, digits.target[:100], strict=True)):
        place = folder / "pair" / ("one" if label else "zero")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype("uint8")).save(place / f"{number}.png")
    return ["--data", "ImageFolder", "--data.root", "pair", "--data.num_workers", "0", "--data.val_fraction", "0.4"]


def test_two_classes_have_a_threshold_of_validation_images_which_a_later_test_takes(run, folder, zeros_and_ones):
    short = ["--trainer.max_steps", "2", "--experiment", "pair", "--trainer.log_every_n_steps", "1"]
    data = run("fit", *zeros_and_ones, *MODEL, *CPU, *short).datamodule
    place = folder / "runs/pair/version_0"
    found = json.loads((place / "results.json").read_text())["scores"]["threshold"]
    model = vit.load(place / "checkpoints/last.ckpt")
    scores = {}
    for stage, part in data.sets.items():
        pixels = (part.images / 255 - model.pretrained_cfg["mean"][0]) / model.pretrained_cfg["std"][0]
        with torch.no_grad():
            scores[stage] = model(pixels).softmax(dim=1)[:, 1]
    assert found["class"] == "zero"
    false_positives, true_positives, _ = roc_curve(data.sets["val"].labels, scores["val"])
    said, is_zero = scores["val"] >= found["value"], data.sets["val"].labels == 1
    j = recall_score(is_zero, said) + recall_score(~is_zero, ~said) - 1
    assert j == pytest.approx((true_positives - false_positives).max())
    said, is_zero = scores["test"] >= found["value"], data.sets["test"].labels == 1
    assert found["sensitivity"] == pytest.approx(recall_score(is_zero, said))
    assert found["specificity"] == pytest.approx(recall_score(~is_zero, ~said))
    assert found["precision"] == (pytest.approx(precision_score(is_zero, said)) if said.any() else None)

    run("test", "--ckpt_path", place, *CPU)
    later = json.loads((place / "evaluations/test_last_0/results.json").read_text())["scores"]["threshold"]
    assert later == found
    model = vit.load(place / "checkpoints/last.ckpt")
    vit.save(model, "weights.safetensors")
    run("test", "--ckpt_path", "weights.safetensors", *zeros_and_ones, *CPU, "--experiment", "alone")
    alone = folder / "runs/alone/evaluations/test_weights_0"
    assert json.loads((alone / "results.json").read_text())["scores"]["threshold"] is None
    assert "No threshold: validation images of both classes choose it" in (alone / "report.html").read_text()


def test_equal_probabilities_are_of_the_first_class_in_table_and_score():
    model = ViTClassifier(**SIZES)
    model.evaluation = model.new_evaluation()
    model.evaluation.update(torch.zeros(3, 5), torch.tensor([0, 4, 0]))
    rows = model.evaluated_rows()
    assert [row["class"] for row in rows.values()] == ["0", "0", "0"]
    assert [row["correct"] for row in rows.values()] == ["true", "false", "true"]
    assert model.evaluation.accuracy == 2 / 3
