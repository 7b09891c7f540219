"""The baseline, for a second on a few images."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import baseline
import pytest
import torch
from baseline import accuracies, best_of_grid, main, make_model, train
from timm_recipes import RECIPES, Decoded, strong_optimizer, strong_schedule
from torch import nn
from torchvision.transforms import v2

import vit
from vit.training.flop import forward_flop, training_flop


@pytest.fixture
def folder(tmp_path, save_noise):
    """Two classes of 50 training and 3 test images."""
    for name in ("a", "b"):
        save_noise(tmp_path / "images/train" / name, 50)
        save_noise(tmp_path / "images/test" / name, 3)
    return tmp_path / "images"


DEFAULTS, STRONGEST = RECIPES["defaults"], RECIPES["strongest"]
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@each_recipe
def test_the_same_share_of_each_class_is_held_out(folder, recipe):
    sets = recipe.image_sets(folder, 0.04)
    assert {name: len(images) for name, images in sets.items()} == {"train": 96, "val": 4, "test": 6}
    assert sorted(int(label) for _, label in sets["val"]) == [0, 0, 1, 1]


def test_both_recipes_test_the_same_pixels(folder):
    (default, _), (strong, _) = (recipe.image_sets(folder, 0.04)["test"][1] for recipe in RECIPES.values())
    torch.testing.assert_close(STRONGEST.finish(strong[None])[0], default)


def test_the_strongest_recipe_crops_within_two_reflected_pixels(folder):
    borders = STRONGEST.image_sets(folder, 0.04)["train"].images
    assert borders.shape[-2:] == (36, 36)
    assert torch.equal(borders[..., :2], borders[..., 3:5].flip(-1))
    assert torch.equal(borders[..., -2:, :], borders[..., -5:-3, :].flip(-2))


def test_images_of_a_batch_are_cropped_one_by_one():
    images = torch.arange(40).expand(8, 3, 40, 40).to(torch.uint8)
    crops = Decoded(images, torch.zeros(8), v2.RandomCrop(32))
    assert len({int(crops[i][0][0, 0, 0]) for i in range(8)}) > 1
    assert crops[0][0].shape == (3, 32, 32)


def test_muon_gets_the_matrices_of_the_blocks_and_nothing_else():
    model = STRONGEST.make_model()
    optimizer = strong_optimizer(model, 1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    by_muon = {name for name, parameter in model.named_parameters() if optimizer.state[parameter]["use_muon"]}
    assert by_muon == {name for name, parameter in model.named_parameters() if "blocks" in name and parameter.ndim == 2}


def test_the_rate_falls_to_zero_and_patches_are_dropped_until_late():
    model = STRONGEST.make_model()
    optimizer = strong_optimizer(model, 1e-3)
    schedule, seen = strong_schedule(model, optimizer), {}
    for progress in (0.0, 0.04, 0.52, 0.7, 1.0):
        schedule(progress)
        seen[progress] = ({group["lr"] for group in optimizer.param_groups}, STRONGEST.dropped(model))
    assert seen[0.0] == ({0.0}, 0.5)
    assert seen[0.04] == ({1e-3}, 0.5)
    assert max(seen[0.52][0]) == pytest.approx(0.5e-3)
    assert seen[0.7][1] == 0.0
    assert seen[1.0][0] == {0.0}


def test_the_operations_of_dropped_patches_are_not_counted(monkeypatch):
    monkeypatch.setattr(baseline, "BATCH", 4)
    one_process = replace(STRONGEST, workers=0)
    images = Decoded(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.zeros(4, dtype=torch.long), nn.Identity())
    model = make_model(STRONGEST, torch.float32)
    counted = train(model, images, 1e-6, torch.float32, 1e-3, one_process)["petaflop"]
    model.eval()
    assert counted == pytest.approx(4 * 3 * forward_flop(model, torch.zeros(1, 3, 32, 32)) / 1e15, rel=0.01)


def test_its_operations_are_counted_like_ours():
    size = {"image_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0}
    ours = training_flop(vit.VisionTransformer(**size, pool="cls"))
    theirs = 3 * forward_flop(make_model(DEFAULTS, torch.float32).cpu(), torch.zeros(1, 3, 32, 32))
    assert ours == theirs


def test_mirror_images_are_averaged():
    class Lopsided(nn.Module):
        def forward(self, images):
            left, right = images[..., :1].flatten(1).mean(1), images[..., 1:].flatten(1).mean(1)
            return torch.stack([left, 4 * right - 2 * left], dim=1)

    # The first has logits (2, 0), mirrored (1, 6), together (3, 6): class 1, and class 0 without the mirror image.
    images = [(torch.tensor(pixels).expand(3, 1, 2), 1) for pixels in ([2.0, 1.0], [1.0, 2.0])]
    alone = replace(DEFAULTS, workers=0)
    assert accuracies(Lopsided(), images, torch.float32, alone) == (0.5, 1.0)


def test_its_attention_is_the_one_that_trains_fastest():
    for dtype in (torch.float32, torch.bfloat16):
        slow = baseline.DEVICE.type == "cpu" and dtype == torch.bfloat16
        assert {block.attn.fused_attn for block in make_model(DEFAULTS, dtype).blocks} == {not slow}


def test_it_trains_for_its_time_and_writes_a_cell(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baseline, "BATCH", 16)
    main(["--data", str(folder), "--minutes", "0.01", "--seeds", "3", "--output", str(tmp_path)])
    ((title, cell),) = json.loads((tmp_path / "accuracy.json").read_text()).items()
    assert title == f"{DEFAULTS.name}, 0.01 min, {baseline.machine()['gpu'] or 'cpu'}, seed 3"
    assert cell["seconds"] >= 0.6
    assert cell["steps"] * 16 / 96 == pytest.approx(cell["epochs"], abs=0.01)
    assert 0 <= cell["test_accuracy"] <= 1
    assert cell["command"].startswith("python benchmarks/")
    assert capsys.readouterr().out.strip() == Path(tmp_path / "accuracy.md").read_text().strip()
    with pytest.raises(SystemExit):
        main(["--data", str(folder), "--minutes", "0.01", "--lr", "0.1", "--output", str(tmp_path)])
    assert "from 0.001, and these would be from 0.1: choose another --output" in capsys.readouterr().err


@pytest.fixture
def grid(tmp_path):
    """Write accuracies of learning rates."""

    def grid(**accuracies):
        facts = {"recipe": STRONGEST.name, "minutes": 10.0, "machine": baseline.machine()}
        cells = {rate: facts | {"lr": float(rate[1:]), "val_accuracy": value} for rate, value in accuracies.items()}
        path = tmp_path / "baseline_grid.json"
        path.write_text(json.dumps(cells))
        return path

    return grid


def test_the_best_rate_of_the_grid_is_taken_if_it_is_inside(grid, tmp_path):
    path = grid(_1=0.5, _2=0.7, _3=0.6)
    assert best_of_grid(path, STRONGEST, 10) == (2.0, {"1": 0.5, "2": 0.7, "3": 0.6})
    with pytest.raises(ValueError, match=r"3 is the best and the last of the rates in .*: measure one beyond it"):
        best_of_grid(grid(_1=0.5, _2=0.7, _3=0.8), STRONGEST, 10)
    for recipe, minutes in ((DEFAULTS, 10), (STRONGEST, 3)):
        with pytest.raises(ValueError, match=rf"has no rate of '{recipe.name}' in {minutes} min: measure some"):
            best_of_grid(path, recipe, minutes)


def test_a_grid_reads_no_test_image_and_the_strongest_recipe_takes_its_best(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baseline, "BATCH", 16)
    arguments = ["--data", str(folder), "--recipe", "strongest", "--minutes", "1e-5", "--output", str(tmp_path)]
    main([*arguments, "--lr-grid", "1e-3", "2e-3", "4e-3"])
    path = tmp_path / "baseline_grid.json"
    cells = json.loads(path.read_text())
    assert [(cell["lr"], cell["val_images"]) for cell in cells.values()] == [(1e-3, 10), (2e-3, 10), (4e-3, 10)]
    assert not any("test_accuracy" in cell for cell in cells.values())
    for cell, value in zip(cells.values(), (0.1, 0.3, 0.2), strict=True):
        cell["val_accuracy"] = value
    path.write_text(json.dumps(cells))
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))
    main([*arguments, "--seeds", "5"])
    (cell,) = json.loads((tmp_path / "accuracy.json").read_text()).values()
    assert cell["compiled"]
    assert cell["settings"]["lr"] == 2e-3
    assert cell["lr_grid"] == {"0.001": 0.1, "0.002": 0.3, "0.004": 0.2}
    assert "by validation accuracy the best of 0.001 (10.0 %), 0.002 (30.0 %)" in capsys.readouterr().out


def test_a_folder_without_images_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        baseline.main(["--data", str(tmp_path)])
    assert f"no folder {tmp_path / 'train'}: --data names a folder" in capsys.readouterr().err.splitlines()[-1]
