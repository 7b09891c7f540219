"""The benchmark of explanations, on a few images."""

import json
from pathlib import Path

import explanations
import mosaic_training
import pytest
import torch
from training_runs import about_packaged

from vit import VisionTransformer, load
from vit.explain import CONTROLS
from vit.explain.evaluation.ground_truth import mosaics

SETTINGS = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def checkpoint(run: Path, seed: int, **settings: object) -> str:
    """The checkpoint of a finished run, of an untrained model."""
    model = VisionTransformer(**SETTINGS | {key: settings[key] for key in ("in_channels", "num_classes")})
    state = {f"vit.{name}": tensor for name, tensor in model.state_dict().items()}
    path = run / "checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": state, "hyper_parameters": SETTINGS | settings}, path)
    (run / "results.json").write_text(json.dumps({"seed": seed, "test_accuracy": 0.75}))
    return str(path)


def test_each_training_is_a_cell_and_the_tables_are_over_all_of_a_recipe(save_noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explanations, "ROUNDS", 1)
    monkeypatch.setattr(mosaic_training, "BATCH", 32)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        save_noise(tmp_path / "photos/test" / name, 2)
        save_noise(tmp_path / "photos/train" / name, 3)
    colour = {"in_channels": 3, "num_classes": 5, "class_names": names, "mean": [0.5] * 3, "std": [0.2] * 3}
    grey = {"in_channels": 1, "num_classes": 10, "mean": [0.1], "std": [0.2]}
    runs = [checkpoint(tmp_path / f"cifar10_quick/version_{seed}", seed, **colour) for seed in (0, 1)]
    digits = checkpoint(tmp_path / "planted_digits/version_0", 3, **grey)
    five = checkpoint(tmp_path / "crowded_digits/version_0", 3, **grey | {"num_classes": 5})
    models = ["--checkpoints", *runs, "--planted", digits, five]
    few = ["--images", "8", "--mosaic_steps", "2", "--output", str(tmp_path), "--methods", "rollout", "gradcam"]
    explanations.main(["--data", str(tmp_path / "photos"), *models, *few])
    cells = json.loads((tmp_path / "explanations.json").read_text())
    recipes = ["cifar10_quick, seed 0", "cifar10_quick, seed 1", "crowded_digits, seed 3", "planted_digits, seed 3"]
    assert [*cells] == recipes
    for name, parts in {
        "cifar10_quick, seed 1": ("photographs", "mosaics", "trained on mosaics"),
        "planted_digits, seed 3": ("planted",),
        "crowded_digits, seed 3": ("planted",),
    }.items():
        assert [len(cells[name][part]) for part in parts] == [2 + len(CONTROLS)] * len(parts)
        assert cells[name]["made"].keys() == {"command", "machine", "threads", "load", "date", "commit"}
        assert cells[name]["training"]["test_accuracy"] == 0.75
    written = (tmp_path / "explanations.md").read_text()
    assert capsys.readouterr().out.strip() == written.strip()
    assert "Seeds 0, 1; 8 test images" in written
    assert "after 2 steps on mosaics of training images" in written
    assert "a digit among digits that do not decide" in written
    assert "effect of noise in each token" in written
    for picture in ("drop", "hits", "crowd"):
        assert (tmp_path / f"explanations_{picture}.png").stat().st_size > 10_000


def test_the_packaged_model_is_that_of_the_measured_accuracy():
    assert about_packaged()["recipe"] == "cifar10_showcase"
    assert about_packaged()["parameters"] == sum(weight.numel() for weight in load("cifar10").parameters())


def test_a_run_that_has_not_ended_is_refused_before_anything_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        explanations.main(["--data", str(tmp_path), "--checkpoints", str(tmp_path / "a/b/checkpoints/last.ckpt")])
    assert "results.json: give checkpoints of finished runs" in capsys.readouterr().err


def test_models_of_another_recipe_have_no_known_digit_and_photographs_need_a_folder(tmp_path, capsys):
    other = checkpoint(tmp_path / "digits/version_0", 0, in_channels=1, num_classes=10)
    with pytest.raises(SystemExit):
        explanations.main(["--planted", other])
    assert (
        "is of the recipe digits: give --planted models of planted_digits or crowded_digits" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        explanations.main(["--checkpoints", other])
    assert "name their folder with --data" in capsys.readouterr().err


CELLS = {
    f"r, seed {seed}": {"recipe": "r", "seed": seed, "photographs": [{"method": "m", "drop": [drop, 0, 1], "ms": 2.0}]}
    for seed, drop in ((1, 0.5), (0, 0.25))
}


def test_means_are_taken_from_each_training_in_the_order_of_seeds():
    group = explanations.of_recipe(CELLS, "r")
    assert explanations.means(group, "photographs", "drop") == {"m": [0.25, 0.5]}
    assert explanations.means(group, "photographs", "ms") == {"m": [2.0, 2.0]}
    assert explanations.means(group, "photographs", "fill") == {}
    found = explanations.spread(group, "photographs", "drop", "A title")
    assert found.rows == [{"method": "m", "drop": (0.375, 0.25, 0.5)}]
    assert found.note == "A title\nMean, lowest and highest of 2 trainings"


def test_a_classifier_trained_on_mosaics_learns_which_classes_they_hold_and_leaves_the_first_one_alone():
    colours = torch.eye(5, 3) * 4 - 1 + torch.eye(5, 3).roll(-1, 0)  # a colour for each of five classes
    labels = torch.arange(5).repeat(8)
    images = colours[labels][:, :, None, None].expand(-1, -1, 8, 8).contiguous()
    torch.manual_seed(0)
    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tiled, _, classes = mosaics(images, labels, torch.Generator().manual_seed(1))
    trained = mosaic_training.train_on_mosaics(model, images, labels, 60)
    missing = (torch.ones(len(tiled), 5) - torch.nn.functional.one_hot(classes, 5).sum(dim=1)).argmax(dim=1)
    assert (trained(tiled).argmin(dim=1) == missing).float().mean() > 0.9
    assert mosaic_training.recognised(trained, tiled, labels) > 0.95
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
