"""The model that comes with the package, and names beside paths."""

import json
import re
from pathlib import Path

import pytest
import torch

import vit
from vit.commands.photographs import find_images, read_images
from vit.weights import PACKAGED
from vit.weights.loading import __file__ as loading

ROOT = Path(__file__).parents[2]
PHOTOGRAPHS = ROOT / "notebooks" / "cifar10"


@pytest.fixture(scope="module")
def model():
    return vit.load("cifar10")


def test_the_model_of_the_package_reads_a_class_token_and_16_x_16_patches(model):
    assert model.patch_embed.grid_size == (16, 16)
    assert model.pool == "cls"
    assert not model.training
    assert model.pos_embed.dtype == torch.float32


def test_it_classifies_the_photographs_of_the_notebook(model):
    files = find_images([PHOTOGRAPHS])
    names = model.pretrained_cfg["class_names"]
    labels = torch.tensor([names.index(file.stem.split("_")[0]) for file in files])
    assert len(files) == 12
    assert (model(read_images(files, model)[1]).argmax(dim=1) == labels).sum() >= 8


def test_each_packaged_model_is_small_and_has_a_card_with_the_accuracy_of_its_training():
    cells = json.loads((ROOT / "benchmarks/results/accuracy.json").read_text()).values()
    for name in PACKAGED:
        file = Path(loading).with_name(f"{name}.safetensors")
        assert file.stat().st_size < 4e6
        card = file.with_suffix(".md").read_text()
        named = [cell for cell in cells if f"configs/{cell['recipe']}.yaml" in card]
        assert named
        assert all(f"{100 * cell['test_accuracy']:.1f} %" in card for cell in named)
        assert re.search(r"^## Licence", card, re.MULTILINE)


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no file at cifar10"):
        vit.load("./cifar10")
    with pytest.raises(ValueError, match="no file at cifar10"):
        vit.load(Path("cifar10"))
