"""The benchmark of overlapping patches, on an untrained model and a few images."""

import json

import overlap
import pytest
import torch

import vit


def test_a_model_is_measured_with_its_own_stride_and_with_half_of_it(save_noise, tmp_path, capsys):
    names = ["a", "b", "c"]
    for name in names:
        save_noise(tmp_path / "photos/test" / name, 4)
    described = {"class_names": names, "mean": [0.5] * 3, "std": [0.2] * 3}
    sizes = {"patch_size": (8, 16), "embed_dim": 12, "depth": 1, "num_heads": 1, "num_classes": 3}
    state = {f"vit.{name}": tensor for name, tensor in vit.VisionTransformer(**sizes).state_dict().items()}
    path = tmp_path / "recipe/version_0/checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": state, "hyper_parameters": sizes | described}, path)
    (path.parent.parent / "results.json").write_text(json.dumps({"seed": 7}))

    overlap.main(["--data", str(tmp_path / "photos"), "--checkpoints", str(path), "--output", str(tmp_path)])
    (cell,) = json.loads((tmp_path / "overlap.json").read_text()).values()
    assert [(row["stride"], row["grid"], row["images"]) for row in cell["rows"]] == [
        ([8, 16], [4, 2], 12),
        ([4, 8], [8, 4], 12),
    ]
    model = vit.load(path)
    images, labels = overlap.photographs(tmp_path / "photos/test", 12, model)
    with torch.no_grad():
        assert cell["rows"][0]["accuracy"] == (model(images).argmax(dim=1) == labels).double().mean()
    written = capsys.readouterr().out
    assert "recipe, seed 7" in written
    assert "8 x 4" in written


def test_a_run_that_has_not_ended_is_refused_before_anything_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit):
        overlap.main(["--data", str(tmp_path), "--checkpoints", str(tmp_path / "a/b/checkpoints/last.ckpt")])
    assert "results.json: give checkpoints of finished runs" in capsys.readouterr().err
