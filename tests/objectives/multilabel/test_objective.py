"""Several labels an image: trained, resumed, tested, predicted, explained by class."""

import csv
import json

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer
from torch.testing import assert_close

import vit
from tests.tiny import CPU, MODEL
from vit.commands import explain
from vit.data import Digits
from vit.data.module import ImageDataModule, ImageSet
from vit.objectives import MultilabelClassifier
from vit.runs.tested_images import read_rows
from vit.training.loader_batches import UserBatches

NAMES = ["even", "large", "round"]
SIZES = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 8, "depth": 1, "num_heads": 2}


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """Eighty digits as files; each is even, larger than 4, both, neither, or round as well."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("digits")
    rows = ["file,even,large,round"]
    for number, (image, label) in enumerate(zip(*(part[:80] for part in read_digits()), strict=True)):
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{int(label % 2 == 0)},{int(label > 4)},{int(label in (0, 6, 8, 9))}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


def read_digits():
    data = Digits()
    data.setup("fit")
    return data.sets["train"].images, data.sets["train"].labels


@pytest.fixture
def command(photographs):
    table = ["--data", "ImageTable", "--data.table", photographs / "labels.csv", "--data.num_workers", 0]
    few = ["--data.batch_size", 16, "--trainer.max_epochs", 3, "--trainer.log_every_n_steps", 1]
    return [*table, *few, "--model", "MultilabelClassifier", *MODEL, *CPU, "--experiment", "labels"]


def test_a_run_with_a_table_is_trained_tested_predicted_and_reported(
    run, command, folder, photographs, capsys, pictures
):
    run("fit", *command, "--model.positive_weights", "balanced", "--model.test_views", "flip")
    place = folder / "runs/labels/version_0"
    results = json.loads((place / "results.json").read_text())
    scores = results["scores"]
    assert results["test_mean_average_precision"] == pytest.approx(scores["mean_average_precision"])
    assert [row["name"] for row in scores["classes"]] == NAMES
    assert "val_mean_average_precision: " in (printed := capsys.readouterr().out)
    assert "test_mean_average_precision_views: " in printed
    assert {path.stem for path in place.glob("*.png")} == {"curves", "per_class", "mistakes", "roc", "attention"}
    assert "3 classes, test images" in (place / "report.html").read_text()
    state = torch.load(place / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert [row["threshold"] for row in scores["classes"]] == pytest.approx(state["thresholds"].tolist())
    assert not (state["thresholds"] == 0.5).all()

    run("test", "--ckpt_path", place)
    tested = json.loads((place / "evaluations/test_last_0/results.json").read_text())
    assert tested["scores"] == scores

    rows, thresholds = read_rows(place), state["thresholds"]
    assert read_rows(place / "evaluations/test_last_0") == rows
    assert len(rows) == scores["count"]
    model = vit.load(place / "checkpoints/last.ckpt")
    with (photographs / "labels.csv").open() as file:
        truth = {row["file"]: "; ".join(name for name in NAMES if row[name] == "1") for row in csv.DictReader(file)}
    for row in rows:
        image = (torch.from_numpy(read(photographs / row["file"])) / 255 - 0.449) / 0.226
        probabilities = model(image[None, None].float()).sigmoid()[0]
        assert [float(row[f"P({name})"]) for name in NAMES] == pytest.approx(probabilities.tolist(), abs=1e-5)
        said = {name for name, value, limit in zip(NAMES, probabilities, thresholds, strict=True) if value >= limit}
        assert {*row["labels"].split("; ")} - {""} == said
        assert row["true_labels"] == truth[row["file"]]
        assert row["correct"] == str(said == {*row["true_labels"].split("; ")} - {""}).lower()
    assert sum(row["correct"] == "true" for row in rows) / len(rows) == pytest.approx(scores["exact_match"])
    wrong = [row["file"] for row in rows if row["correct"] == "false"]
    assert all(f">{file}</th>" in (place / "report.html").read_text() for file in wrong[:3])

    run("predict", "--ckpt_path", place, "--data.root", photographs / "3.png", "--output", "said.csv")
    with (folder / "said.csv").open() as file:
        (row,) = csv.DictReader(file)
    image = (torch.from_numpy(read(photographs / "3.png")) / 255 - 0.449) / 0.226
    probabilities = model(image[None, None].float()).sigmoid()[0]
    said = [NAMES[i] for i in probabilities.argsort(descending=True) if probabilities[i] >= state["thresholds"][i]]
    assert row["labels"] == "; ".join(said)
    first = row["probabilities"].split("; ")[0].split(" ")
    assert (first[0], float(first[1])) == (
        NAMES[probabilities.argmax()],
        pytest.approx(probabilities.max().item(), abs=1e-3),
    )

    explain.main([str(photographs / "3.png"), "--checkpoint", str(place), "--method", "relevance", "--target", "large"])
    printed = capsys.readouterr().out
    shown = [
        f"{NAMES[i]} ({100 * probabilities[i]:.1f} %)" for i in range(3) if probabilities[i] >= state["thresholds"][i]
    ]
    assert f"3.png: {', '.join(shown) or 'none of the classes'}\n  why large?" in printed


def read(path):
    import numpy as np
    from PIL import Image

    return np.array(Image.open(path))


def test_the_checkpoint_of_a_training_that_ends_within_an_epoch_has_the_thresholds_of_its_results(run, command, folder):
    run("fit", *command, "--trainer.max_steps", 6)
    place = folder / "runs/labels/version_0"
    scores = json.loads((place / "results.json").read_text())["scores"]
    checkpoint = torch.load(place / "checkpoints/last.ckpt", weights_only=True)
    expected = pytest.approx([row["threshold"] for row in scores["classes"]])
    assert checkpoint["global_step"] == 6
    assert checkpoint["state_dict"]["thresholds"].tolist() == expected
    assert checkpoint["encoder"]["about"]["thresholds"] == expected
    run("test", "--ckpt_path", place)
    assert json.loads((place / "evaluations/test_last_0/results.json").read_text())["scores"] == scores


def test_it_is_resumed_bit_for_bit(whole_and_resumed, command):
    mixed = ["--data.mixup", "0.8", "--data.flip", "true", "--model.ema_decay", "0.9", "--data.val_fraction", "0.2"]
    whole, resumed = whole_and_resumed(MultilabelClassifier, *command, *mixed)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_loss_is_binary_cross_entropy_with_smoothed_targets_and_weights():
    module = MultilabelClassifier(num_classes=3, label_smoothing=0.1, **SIZES).eval()
    images, labels = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8), torch.tensor([[1.0, 0, 1]] * 5)
    logits = module(images)
    smooth = torch.tensor([[0.95, 0.05, 0.95]]).expand(5, 3)
    assert_close(module.training_loss((images, labels)), F.binary_cross_entropy_with_logits(logits, smooth))
    module.class_weights = torch.tensor([2.0, 1.0, 0.5])
    # Smoothing adds to the images without a class as well, which have no weight.
    losses = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none") * torch.tensor([2.0, 1.0, 0.5])
    assert_close(module.training_loss((images, labels)), losses.mean())
    of_others = F.binary_cross_entropy_with_logits(logits, 1 - smooth)
    assert_close(module.training_loss((images, 1 - labels)), of_others)
    blended = module.training_loss((images, 0.3 * labels + 0.7 * (1 - labels)))
    assert_close(blended, 0.3 * losses.mean() + 0.7 * of_others)
    numbers = torch.tensor([0, 2, 1, 1, 0])
    rows = F.one_hot(numbers, 3).float()
    assert_close(module.training_loss((images, numbers)), module.training_loss((images, rows)))


class Signs(ImageDataModule):
    """Four images with labels of -1 and 1."""

    num_classes, class_names, image_size, in_channels, mean, std = 2, ["a", "b"], (8, 8), 1, [0.5], [0.5]

    def load_sets(self):
        images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        return {"train": ImageSet(images, torch.tensor([[1.0, -1.0]] * 4))}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's advice
def test_labels_outside_of_0_to_1_are_refused_in_training():
    module, data = MultilabelClassifier(num_classes=2, **SIZES), Signs(val_fraction=0, batch_size=4)
    answer = r"a label is -1, and labels of several classes are 0 and 1, or shares between: turn -1 into 0, and leave"
    with pytest.raises(ValueError, match=answer):
        UserBatches().read((torch.rand(2, 1, 8, 8), torch.tensor([[1, -1], [-1, 1]])), module)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    with pytest.raises(ValueError, match=answer):
        Trainer(**quiet, max_steps=1, accelerator="cpu").fit(module, data)


def test_positive_weights_are_negatives_over_positives(run, command, photographs):
    module = run("fit", *command, "--model.positive_weights", "balanced", "--data.test_fraction", 0).model
    labels = module.data.sets["train"].labels
    assert_close(module.class_weights, (1 - labels).sum(dim=0) / labels.sum(dim=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model.positive_weights", "all"],
            "--model.positive_weights: expected one of ['none', 'balanced'], got all",
        ),
        (["--data.balance", "loss"], "and --model.positive_weights balanced"),
        (["--model", "ViTClassifier"], "shares, or several an image: give class numbers"),
    ],
)
def test_a_mistake_is_one_line(error_of, command, arguments, message):
    assert message in error_of("fit", *command, *arguments)


def test_weights_of_single_classes_are_refused(error_of):
    typed = ["--data", "Digits", "--model", "MultilabelClassifier", *MODEL, *CPU, "--data.balance", "loss"]
    assert "and --model.positive_weights balanced" in error_of("fit", *typed)
