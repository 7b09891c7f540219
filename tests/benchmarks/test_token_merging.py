"""The benchmark of token merging, on a few images."""

import json

import token_merging
import torch

import vit


def test_each_number_of_merged_patches_is_a_row_beside_the_model_as_it_is(save_noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(token_merging, "MERGED", (0, 40))
    for name in ("cat", "dog"):
        save_noise(tmp_path / "photos/test" / name, 2)
    arguments = ["--data", str(tmp_path / "photos"), "--rounds", "2", "--output", str(tmp_path)]
    token_merging.main(arguments)
    results = json.loads((tmp_path / "token_merging.json").read_text())
    first, second = results["rows"]
    assert results["images"] == 4
    assert (first["r"], first["left"], first["same"]) == (0, 256, 1.0)
    assert (second["r"], second["left"]) == (40, 256 - 5 * 40)
    model = vit.load("cifar10")
    images, labels = token_merging.photographs(tmp_path / "photos/test", 4, model)
    with torch.no_grad():
        assert first["accuracy"] == (model(images).argmax(dim=1) == labels).double().mean()
    assert "The packaged model on 4 test images" in capsys.readouterr().out
