"""Files from strangers: what would fill the memory, hang, leave the folder or execute code is refused."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vit
from vit.weights import tensor_files

SIZES = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3, "num_classes": 2}


def write_zeros(path):
    """Write arrays of 1.2 million bytes of zeros together, packed."""
    arrays = {f"w{i}": np.zeros(50_000, np.float32) for i in range(6)}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    path.with_suffix(".npz").replace(path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_a_small_file_that_unpacks_to_much_more_is_refused_before_it_is_unpacked(suffix, tmp_path, monkeypatch):
    file = write_zeros(tmp_path / f"zeros{suffix}")
    monkeypatch.setattr(np, "load", None)
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(tensor_files, "SMALL", 10**6)
    with pytest.raises(ValueError, match=r"has [\d,]+ bytes and unpacks to 1,20[\d,]+, as no file of weights does"):
        vit.load(file)


def test_a_packed_file_that_is_small_in_any_case_is_read(tmp_path):
    with pytest.raises(ValueError, match="holds no Vision Transformer of a known format"):
        vit.load(write_zeros(tmp_path / "zeros.npz"))


def test_a_packed_file_of_weights_is_read(tmp_path):
    model = vit.VisionTransformer(**SIZES, mlp="gelu_tanh")
    vit.save(model, tmp_path / "model.npz", format="google")
    np.savez_compressed(tmp_path / "packed.npz", **np.load(tmp_path / "model.npz"))
    again = vit.load(tmp_path / "packed.npz").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


@pytest.fixture
def folder(tmp_path):
    """A folder of weights without its configs."""
    save_file(vit.VisionTransformer(**SIZES).state_dict(), tmp_path / "part.safetensors")
    return tmp_path


def test_a_pipe_for_a_config_is_refused_and_not_waited_for(folder):
    os.mkfifo(folder / "config.json")
    with pytest.raises(ValueError, match=r"config\.json is no regular file"):
        vit.load(folder)


def test_a_config_of_more_than_16_megabytes_is_refused(folder):
    (folder / "config.json").write_text(json.dumps({"architecture": "x" * 2**24}))
    with pytest.raises(ValueError, match=r"config\.json cannot be read \(more than 16,777,216 bytes\)"):
        vit.load(folder)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (["part.safetensors"], "weight_map must name the file of each tensor"),
        ({}, "weight_map must name the file of each tensor"),
        ({"norm.bias": 3}, "weight_map must name the file of each tensor"),
        (None, "weight_map must name the file of each tensor"),
        ({"norm.bias": "../part.safetensors"}, r"its weight_map names '\.\./part\.safetensors', which is no file of"),
        ({"norm.bias": "/part.safetensors"}, r"its weight_map names '/part\.safetensors'"),
        ({"norm.bias": ".."}, r"its weight_map names '\.\.'"),
        ({"norm.bias": "other.safetensors"}, r"no file at .*other\.safetensors"),
    ],
    ids=str,
)
def test_an_index_of_several_files_names_files_of_its_folder(weight_map, message, folder):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=message):
        vit.load(folder)


def test_names_of_classes_have_at_most_a_thousand_letters(tmp_path):
    model = vit.VisionTransformer(**SIZES)
    for letters, refused in ((1000, False), (10**7, True)):
        model.pretrained_cfg = {"class_names": ["a", "b" * letters]}
        vit.save(model, tmp_path / "model.safetensors")
        if refused:
            with pytest.raises(ValueError, match=r"damaged: class_names \(.{80}\) must be a printable name"):
                vit.load(tmp_path / "model.safetensors")
        else:
            assert vit.load(tmp_path / "model.safetensors").pretrained_cfg["class_names"] == ["a", "b" * letters]


def test_entries_of_a_file_that_mean_nothing_here_are_not_kept(tmp_path):
    model = vit.VisionTransformer(**SIZES)
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "url": "https://example.org", "input_size": [9], "note": ["x"]}
    vit.save(model, tmp_path / "model.safetensors")
    found = vit.load(tmp_path / "model.safetensors").pretrained_cfg
    assert found.keys() == {"mean", "std", "class_names", "crop_ratio", "input_size", "crop_pct"}
    assert (found["mean"], found["input_size"]) == ([0.1, 0.2, 0.3], [3, 8, 8])
