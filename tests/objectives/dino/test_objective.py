"""DINO, trained and asked from the command line."""

import json
import math

import pytest
import torch
from lightning import Trainer

import vit
from tests.tiny import CPU, MODEL
from vit.data import Digits
from vit.objectives import DINO
from vit.objectives.dino.evaluation import DistillationEvaluation
from vit.objectives.dino.objective import STUDENT_TEMPERATURE, TEACHER_TEMPERATURE, distillation_losses

RUN = [
    *("--data", "Digits", "--data.batch_size", "400", "--model", "DINO", *MODEL, *CPU),
    *("--model.prototypes", "13", "--model.local_views", "1", "--trainer.max_epochs", "2", "--experiment", "dino"),
]

SIZES = {"image_size": (6, 10), "patch_size": 2, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
REAL = torch.ones(5, dtype=torch.bool)


def learner(**changes):
    torch.manual_seed(0)
    return DINO(**SIZES | {"prototypes": 7, "local_views": 1} | changes)


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 1, 6, 10), dtype=torch.uint8, generator=torch.manual_seed(1))


def test_the_loss_is_that_of_loops_over_pairs_of_different_views():
    generator = torch.manual_seed(0)
    probabilities = torch.randn(2, 3, 7, dtype=torch.float64, generator=generator).softmax(dim=-1)
    student_logits = torch.randn(5, 3, 7, dtype=torch.float64, generator=generator)
    found = distillation_losses(probabilities, student_logits)
    for image in range(3):
        losses = []
        for teacher in range(2):
            for view in (view for view in range(5) if view != teacher):
                exponents = [math.exp(guess / STUDENT_TEMPERATURE) for guess in student_logits[view, image].tolist()]
                logs = [math.log(exponent / sum(exponents)) for exponent in exponents]
                losses.append(-sum(p * q for p, q in zip(probabilities[teacher, image].tolist(), logs, strict=True)))
        assert len(losses) == 8
        assert found[image].item() == pytest.approx(sum(losses) / 8)


def test_the_loss_of_a_training_is_that_of_centred_and_sharpened_answers_of_the_teacher(images):
    module = learner()
    with torch.no_grad():
        for parameter in module.network.student.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    module.centre.copy_(0.1 * torch.randn(7))
    views = module.cut(images)
    normalised = [(view / 255 - 0.5) / 0.5 for view in views]
    teacher_logits = torch.stack([module.network.teacher(view) for view in normalised[:2]])
    student_logits = torch.stack([module.network.student(view) for view in normalised])
    probabilities = ((teacher_logits - module.centre) / TEACHER_TEMPERATURE).softmax(dim=-1)
    expected = distillation_losses(probabilities, student_logits)
    centre = 0.9 * module.centre + 0.1 * teacher_logits.mean(dim=(0, 1))
    torch.testing.assert_close(module.view_losses(views, REAL, 0), expected)
    torch.testing.assert_close(module.centre, centre)


def test_the_centre_stays_in_an_evaluation_and_without_centring(images):
    module = learner().eval()
    module.view_losses(module.cut(images), REAL, 0)
    assert (module.centre == 0).all()
    module = learner(centre_momentum=1.0)
    module.view_losses(module.cut(images), REAL, 0)
    assert (module.centre == 0).all()


def test_the_teacher_starts_as_the_student_and_has_no_gradient(images):
    module = learner(init="mimetic")
    student, teacher = module.network.student, module.network.teacher
    assert all(torch.equal(value, teacher.state_dict()[name]) for name, value in student.state_dict().items())
    module.training_loss((images, torch.zeros(5))).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_the_teacher_is_the_moving_average_of_the_student_and_has_no_dropout():
    module = learner(teacher_decay=0.75, dropout=0.5)
    assert module.train().network.student.training
    assert not module.network.teacher.training
    before = [parameter.clone() for parameter in module.network.teacher.parameters()]
    with torch.no_grad():
        for parameter in module.network.student.parameters():
            parameter.add_(1.0)
    module.network.move_teacher(1 - module.decay_now())
    for old, new in zip(before, module.network.teacher.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)


class OwnOptimizer(DINO):
    """An optimiser without a schedule."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class OwnSchedule(DINO):
    """A schedule that Lightning steps once an epoch."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's advice
@pytest.mark.parametrize("cls", [DINO, OwnOptimizer, OwnSchedule])
def test_the_teacher_moves_once_with_each_step_of_any_optimiser(cls, monkeypatch):
    module = cls(**SIZES | {"image_size": 8, "patch_size": 4, "prototypes": 7, "local_views": 1})
    moves = []
    monkeypatch.setattr(module.network, "move_teacher", moves.append)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    limits = {"max_epochs": 2, "limit_train_batches": 4, "limit_val_batches": 0, "accumulate_grad_batches": 2}
    Trainer(**quiet, **limits, accelerator="cpu").fit(module, Digits(batch_size=8))
    assert moves == pytest.approx([(1 - 0.996) * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(1, 5)])


@pytest.mark.parametrize(("progress", "decay"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
def test_the_decay_of_the_teacher_rises_to_one(progress, decay):
    module = learner(teacher_decay=0.9)
    module.progress = progress
    assert module.decay_now() == pytest.approx(decay)


def information(probabilities):
    evaluation = DistillationEvaluation(4, 8, torch.device("cpu"))
    for part in probabilities.double().split(3, dim=1):
        evaluation.count_prototypes(part)
    return evaluation.information


def test_prototypes_tell_the_logarithm_of_their_number_if_they_divide_the_images_evenly():
    assert information(torch.eye(8).repeat(2, 1, 1)) == pytest.approx(math.log(8))


@pytest.mark.parametrize("probabilities", [torch.eye(8)[:1], torch.full((1, 8), 1 / 8)], ids=["one", "all alike"])
def test_prototypes_that_are_the_same_for_all_images_tell_nothing(probabilities):
    assert information(probabilities.expand(2, 9, 8)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["global_views=1", "local_views=0"],
            "global_views (1) and local_views (0) are fewer than the 2 views that DI",
        ),
        (["teacher_decay=1"], "teacher_decay (1.0) must be in [0, 1): 0.996 is usual"),
        (["centre_momentum=-1"], "centre_momentum (-1.0)"),
        (["prototypes=0"], "prototypes (0) must be a positive whole number"),
        (["ema_decay=0.9"], "ema_decay (0.9) averages the weights, and the teacher of DINO is their average already"),
    ],
)
def test_options_without_a_meaning_are_refused_in_one_line(error_of, options, message):
    assert error_of("fit", *RUN, *(f"--model.{option}" for option in options)).startswith(f"error: {message}")


def test_a_strategy_that_shards_the_weights_is_refused():
    module = learner()
    module._device_mesh = {"data_parallel": None}  # as Lightning's strategy sets it
    with pytest.raises(ValueError, match="shards the weights, and DINO needs them whole: take strategy ddp"):
        module.configure_model()


def test_a_batch_of_one_is_refused_in_one_line(error_of):
    assert error_of("fit", *RUN, "--data.batch_size", "1").startswith("error: a batch of 1 is too small for DINO")


def test_weights_that_round_the_steps_of_the_teacher_to_zero_are_refused_in_one_line(error_of):
    said = error_of("fit", *RUN, "--trainer.precision", "bf16-true")
    assert said.startswith("error: the weights are torch.bfloat16, in which the small steps of DINO's teacher are")
    assert said.rstrip().endswith("--trainer.precision bf16-mixed")


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed):
    whole, resumed = whole_and_resumed(DINO, *RUN, "--model.dropout", "0.1", "--model.teacher_decay", "0.5")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert whole["centre"].abs().max() > 0
    names = [name for name in whole if ".teacher." in name]
    assert not all(torch.equal(whole[name], whole[name.replace("teacher", "student")]) for name in names)


def test_the_temperatures_are_those_of_the_paper():
    assert (TEACHER_TEMPERATURE, STUDENT_TEMPERATURE) == (0.04, 0.1)


def test_without_centring_alone_it_collapses_and_the_log_and_the_report_say_so(run, folder, capsys):
    quick = [
        *("--data.batch_size", "200", "--model.local_views", "0", "--model.flip", "false", "--model.distort", "false"),
        *("--model.prototypes", "32", "--model.warmup", "0", "--model.lr", "1e-2", "--model.teacher_decay", "0.98"),
        *("--model.decay", "constant", "--trainer.max_epochs", "14", "--trainer.check_val_every_n_epoch", "7"),
    ]
    run("fit", *RUN, *quick, "--model.centre_momentum", "1")
    said = "the prototypes have collapsed: the teacher says nearly the same of all images"
    printed = capsys.readouterr().out
    assert printed.count(f"warning: {said}") == 1
    assert printed.rindex(said) > printed.index("test_effective_rank")
    assert said.removeprefix("the ") in (folder / "runs/dino/version_0/report.html").read_text()
    run("fit", *RUN, *quick)
    assert "collapsed" not in capsys.readouterr().out
    assert "collapsed" not in (folder / "runs/dino/version_1/report.html").read_text()


def test_the_teacher_is_the_backbone_that_loads_and_is_evaluated(run, folder, pictures):
    run("fit", *RUN)
    place = folder / "runs/dino/version_0"
    scores = json.loads((place / "results.json").read_text())["scores"]
    assert scores["information"] > 0
    assert {path.name for path in place.glob("*.png")} == {"curves.png", "neighbours.png", "views.png"}
    checkpoint = place / "checkpoints/last.ckpt"
    model, module = vit.load(checkpoint), DINO.load_from_checkpoint(checkpoint, weights_only=True).eval()
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(model(module.normalise(images)), module.features(images))
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["network.teacher.encoder.blocks.1.mlp.fc2.weight"])
