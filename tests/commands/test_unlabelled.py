"""A folder of images without classes: what learns from it, and what the learned features are worth elsewhere."""

import json

import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vit
from tests.digit_runs import drawing, run_command, working_in
from tests.tiny import CPU
from vit.commands import evaluate

TINY = ["--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "1", "--model.num_heads", "2", *CPU]
UNLABELLED = [
    "--data",
    "ImageFolder",
    "--data.root",
    "unlabelled",
    "--data.batch_size",
    "16",
    "--data.num_workers",
    "0",
]
BRIEF = ["--trainer.max_epochs", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Digits without classes in ``unlabelled``, in class folders in ``labelled``, and a run on the first."""
    digits = load_digits(n_class=3)
    with working_in(tmp_path_factory.mktemp("unlabelled")) as folder:
        for number in range(90):
            image = Image.fromarray((digits.images[number] * 255 / 16).astype("uint8"))
            kept = folder / ("unlabelled" if number < 50 else f"labelled/{digits.target[number]}") / f"{number}.png"
            kept.parent.mkdir(parents=True, exist_ok=True)
            image.save(kept)
        with drawing():
            whole = ["--data.test_fraction", "0", "--experiment", "mae"]
            run_command("fit", *UNLABELLED, *BRIEF, *TINY, "--model", "MaskedAutoencoder", *whole)
        yield folder


def test_the_features_that_are_learned_from_it_start_a_classifier(place):
    checkpoint = place / "runs/mae/version_0/checkpoints/last.ckpt"
    results = json.loads((checkpoint.parents[1] / "results.json").read_text())
    assert (results["scores"]["knn_accuracy"], results["scores"]["count"]) == (None, 5)
    assert results["inventory"] == ["images of unlabelled: 45 train, 5 val"]
    assert {path.name for path in checkpoint.parents[1].glob("*.png")} >= {"reconstructions.png", "neighbours.png"}
    labelled = ["--data", "ImageFolder", "--data.root", "labelled", "--data.num_workers", "0"]
    with working_in(place):
        cli = run_command("fit", *labelled, "--model.init_from", checkpoint, *CPU, "--trainer.max_steps", "1")
    assert (cli.model.network.num_classes, cli.model.network.embed_dim) == (3, 8)


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_its_features_are_judged_on_labelled_images(place, capsys, classifier):
    run = place / "runs/mae/version_0"
    with working_in(place):
        evaluate.main([classifier, "--checkpoint", str(run), "--data.root", "labelled"])
    assert "% of 9 test images, from 31 training images of 3 classes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("SIGReg", []),
        ("DINO", ["--model.prototypes", "16"]),
        ("ImageCompleter", ["--model.palette_size", "3", "--model.grid_size", "4"]),
    ],
)
def test_the_other_objectives_without_labels_take_it(place, objective, options):
    with working_in(place):
        cli = run_command("fit", *UNLABELLED, *BRIEF, *TINY, "--model", objective, *options)
    assert json.loads((cli.run_folder / "results.json").read_text())["finished"]


@pytest.mark.parametrize("objective", [[], ["--model", "MultilabelClassifier"]], ids=["classes", "labels"])
def test_a_classifier_is_told_before_an_image_is_decoded_that_there_are_no_classes(
    place, error_of, objective, monkeypatch
):
    monkeypatch.chdir(place)
    monkeypatch.setattr(vit.data.ImageFolder, "load_sets", lambda _: pytest.fail("images are decoded"))
    message = error_of("fit", *UNLABELLED, *BRIEF, *TINY, *objective)
    assert message == (
        "error: no class folders with images in unlabelled: it needs CLASS/image.jpg or train/CLASS/image.jpg; without "
        "labels, --model MaskedAutoencoder learns from it"
    )


def test_an_evaluation_is_told_that_there_are_no_classes(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit):
        evaluate.main(["knn", "--checkpoint", "cifar10", "--data.root", "unlabelled"])
    assert capsys.readouterr().err.startswith("error: no class folders with images in unlabelled: it needs CLASS/image")


def test_a_folder_whose_images_are_all_damaged_is_refused_in_one_line(folder, error_of):
    (folder / "unlabelled").mkdir()
    (folder / "unlabelled/0.png").write_text("no image")
    message = error_of("fit", *UNLABELLED, *TINY, "--model", "MaskedAutoencoder")
    assert message.startswith("error: cannot read any of the 1 image files, such as unlabelled/0.png: are they images?")
