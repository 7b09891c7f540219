"""The baseline, for a second on a few images."""

import json
from pathlib import Path

import baseline
import pytest
import torch
from baseline import NAME, accuracies, image_sets, main, make_model
from torch import nn

import vit
from vit.training.flop import forward_flop, training_flop


@pytest.fixture
def folder(tmp_path, save_noise):
    """Two classes of 50 training and 3 test images."""
    for name in ("a", "b"):
        save_noise(tmp_path / "images/train" / name, 50)
        save_noise(tmp_path / "images/test" / name, 3)
    return tmp_path / "images"


def test_the_same_share_of_each_class_is_held_out(folder):
    sets = image_sets(folder)
    assert {name: len(images) for name, images in sets.items()} == {"train": 96, "val": 4, "test": 6}
    assert sorted(label for _, label in sets["val"]) == [0, 0, 1, 1]
    assert not set(sets["train"].indices) & set(sets["val"].indices)


def test_its_operations_are_counted_like_ours():
    size = {"image_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0}
    ours = training_flop(vit.VisionTransformer(**size, pool="cls"))
    theirs = 3 * forward_flop(make_model(torch.float32).cpu(), torch.zeros(1, 3, 32, 32))
    assert ours == theirs


def test_mirror_images_are_averaged(monkeypatch):
    class Lopsided(nn.Module):
        def forward(self, images):
            left, right = images[..., :1].flatten(1).mean(1), images[..., 1:].flatten(1).mean(1)
            return torch.stack([left, 4 * right - 2 * left], dim=1)

    monkeypatch.setattr(baseline, "WORKERS", 0)
    # The first has logits (2, 0), mirrored (1, 6), together (3, 6): class 1, and class 0 without the mirror image.
    images = [(torch.tensor(pixels).expand(3, 1, 2), 1) for pixels in ([2.0, 1.0], [1.0, 2.0])]
    assert accuracies(Lopsided(), images, torch.float32) == (0.5, 1.0)


def test_its_attention_is_the_one_that_trains_fastest():
    for dtype in (torch.float32, torch.bfloat16):
        slow = baseline.DEVICE.type == "cpu" and dtype == torch.bfloat16
        assert {block.attn.fused_attn for block in make_model(dtype).blocks} == {not slow}


@pytest.mark.slow
def test_it_trains_for_its_time_and_writes_a_cell(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baseline, "BATCH", 16)
    main(["--data", str(folder), "--minutes", "0.01", "--seeds", "3", "--output", str(tmp_path)])
    ((title, cell),) = json.loads((tmp_path / "accuracy.json").read_text()).items()
    assert title == f"{NAME}, 0.01 min, {baseline.machine()['gpu'] or 'cpu'}, seed 3"
    assert cell["seconds"] >= 0.6
    assert cell["steps"] * 16 / 96 == pytest.approx(cell["epochs"], abs=0.01)
    assert 0 <= cell["test_accuracy"] <= 1
    assert cell["command"].startswith("python benchmarks/")
    assert capsys.readouterr().out.strip() == Path(tmp_path / "accuracy.md").read_text().strip()
    with pytest.raises(SystemExit):
        main(["--data", str(folder), "--minutes", "0.01", "--lr", "0.1", "--output", str(tmp_path)])
    assert "from 0.001, and these would be from 0.1: choose another --output" in capsys.readouterr().err


def test_a_folder_without_images_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        baseline.main(["--data", str(tmp_path)])
    assert f"no folder {tmp_path / 'train'}: --data names a folder" in capsys.readouterr().err.splitlines()[-1]
