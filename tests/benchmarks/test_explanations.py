"""The benchmark of explanations, on a few images."""

import json
from pathlib import Path

import explanations
import pytest
import torch

from vit import VisionTransformer

SETTINGS = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def checkpoint(path: Path, **settings: object) -> Path:
    """A training checkpoint of an untrained model."""
    model = VisionTransformer(**SETTINGS | {key: settings[key] for key in ("in_channels", "num_classes")})
    state = {f"vit.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": SETTINGS | settings}, path)
    return path


@pytest.mark.slow
def test_it_writes_tables_numbers_and_plots(save_noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explanations, "ROUNDS", 1)
    names = ["a", "b", "c", "d"]
    for name in names:
        save_noise(tmp_path / "photos" / name, 2)
    colour = {"in_channels": 3, "num_classes": 4, "class_names": names, "mean": [0.5] * 3, "std": [0.2] * 3}
    grey = {"in_channels": 1, "num_classes": 10, "mean": [0.1], "std": [0.2]}
    models = ["--checkpoint", str(checkpoint(tmp_path / "colour.ckpt", **colour))]
    models += ["--planted", str(checkpoint(tmp_path / "grey.ckpt", **grey))]
    photos = ["--photos", str(tmp_path / "photos"), "--images", "8"]
    explanations.main([*photos, *models, "--output", str(tmp_path)])
    result = json.loads((tmp_path / "explanations.json").read_text())
    assert [len(result[part]) for part in ("photographs", "planted", "mosaics")] == [16] * 3
    assert result["made"].keys() == {"command", "machine", "date", "commit"}
    assert result["recommended"].keys() == {"photographs", "planted"}
    assert capsys.readouterr().out.strip() == (tmp_path / "explanations.md").read_text().strip()
    for picture in ("drop", "hits"):
        assert (tmp_path / f"explanations_{picture}.png").stat().st_size > 10_000
