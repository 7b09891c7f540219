"""The benchmark of the parts of the training that timm has as well."""

import json

import pytest
import torch
import training_parts

import vit


def test_each_part_has_a_time_of_ours_and_of_timms(tmp_path, capsys):
    training_parts.main(["--rounds", "1", "--output", str(tmp_path)])
    parts = json.loads((tmp_path / "training_parts.json").read_text())["parts"]
    assert parts.keys() == {"moving average", "AdamW", "Muon"}
    assert all(seconds > 0 for cell in parts.values() for seconds in cell.values())
    assert "| one step of" in capsys.readouterr().out


@pytest.mark.parametrize("part", training_parts.PARTS)
@pytest.mark.parametrize("library", [0, 1], ids=["vit", "timm"])
def test_a_step_is_taken(part, library):
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    training_parts.PARTS[part][library](model)()
    is_same = all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert is_same == (part == "moving average")  # which reads the weights alone
