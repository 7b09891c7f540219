"""Distributed checkpoints are read as one file, and nothing in them is executed."""

import pickle
import warnings
from pathlib import Path, PurePosixPath

import pytest
import torch
from torch.distributed import checkpoint as dcp

import vit
from vit.weights import read_checkpoint
from vit.weights.checkpoint import describe_checkpoint

SIZES = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}


class Attack:
    """What a pickle calls when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def write(folder: Path, state: dict, rest: dict) -> None:
    """Write a checkpoint as Lightning's ModelParallelStrategy does, in one process."""
    with warnings.catch_warnings(action="ignore"):  # that no process group is needed
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    torch.save(rest, folder / "meta.pt")


@pytest.fixture
def model() -> vit.VisionTransformer:
    torch.manual_seed(0)
    return vit.VisionTransformer(**SIZES)


@pytest.fixture
def optimizer(model) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW([{"params": [model.head.bias], "lr": 0.1}, {"params": [model.head.weight]}])
    model.head(torch.ones(1, 12)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.fixture
def folder(model, optimizer, tmp_path) -> Path:
    names = ["network.head.bias", "network.head.weight"]
    state = optimizer.state_dict()
    by_name = {
        "state": {names[number]: values for number, values in state["state"].items()},
        "param_groups": [
            group | {"params": [names[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }
    weights = {f"network.{name}": tensor for name, tensor in model.state_dict().items()}
    about = {"hyper_parameters": {"mean": [0.5, 0.4, 0.3]}, "module": "ViTClassifier", "loops": {}}
    about["encoder"] = {"prefix": "network.", "arguments": dict(model.config), "about": {}}
    write(tmp_path / "last.ckpt", {"state_dict": weights, "optimizer_0": by_name}, about)
    return tmp_path / "last.ckpt"


def test_the_model_is_loaded_as_from_one_file(folder, model):
    loaded = vit.load(folder)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(loaded(images), model.eval()(images))
    assert list(loaded.pretrained_cfg["mean"]) == [0.5, 0.4, 0.3]


def test_the_state_of_an_optimizer_is_that_which_the_optimizer_takes(folder, optimizer):
    (state,) = read_checkpoint(folder)["optimizer_states"]
    expected = optimizer.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    for number, values in expected["state"].items():
        assert state["state"][number].keys() == values.keys()
        for name, value in values.items():
            assert torch.equal(state["state"][number][name], value)
    optimizer.load_state_dict(state)


def test_what_is_beside_the_tensors_is_read_without_them(folder):
    found = describe_checkpoint(folder)
    assert found["module"] == "ViTClassifier"
    assert "loops" in found
    assert not found["state_dict"]


@pytest.mark.parametrize("read", [read_checkpoint, describe_checkpoint, vit.load])
@pytest.mark.parametrize("place", ["the list", "a number", "the rest"])
def test_code_is_refused_and_not_executed(read, place, folder, tmp_path):
    attacked = tmp_path / "attacked"
    if place == "the list":
        (folder / ".metadata").write_bytes(pickle.dumps(Attack(attacked)))
    elif place == "the rest":
        torch.save({"hyper_parameters": Attack(attacked)}, folder / "meta.pt")
    else:
        with warnings.catch_warnings(action="ignore"):
            dcp.save({"state_dict": {"a": torch.ones(1)}, "b": Attack(attacked)}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(ValueError, match=r"is refused: it carries pickled code, .* none of it was executed"):
        read(folder)
    assert not attacked.exists()


@pytest.mark.parametrize("damage", ["cut", "missing", "empty list", "cut list", "no list of a checkpoint"])
def test_a_folder_that_was_not_written_to_its_end_is_damaged(damage, folder):
    (part,) = folder.glob("*.distcp")
    if damage == "cut":
        part.write_bytes(part.read_bytes()[:-100])
    elif damage == "missing":
        part.unlink()
    else:
        content = (folder / ".metadata").read_bytes()
        changed = {"empty list": b"", "cut list": content[:-20]}.get(damage, pickle.dumps([1, 2]))
        (folder / ".metadata").write_bytes(changed)
    for read in (read_checkpoint, describe_checkpoint):
        with pytest.raises(ValueError, match="is damaged, or was not written to its end"):
            read(folder)


def test_no_file_outside_of_the_folder_is_read(folder):
    (part,) = folder.glob("*.distcp")
    part.rename(folder.parent / "outside.distcp")
    listed = dcp.FileSystemReader(folder).read_metadata()
    for each in listed.storage_data.values():
        each.relative_path = "../outside.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(listed))
    with pytest.raises(ValueError, match="lacks some of its bytes"):
        read_checkpoint(folder)


def test_no_whole_file_outside_of_the_folder_is_read_either(folder):
    torch.save({"a": 1}, folder.parent / "outside.pt")
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"state_dict": {"a": torch.ones(1)}, "b": 1}, checkpoint_id=folder, no_dist=True)
    listed = dcp.FileSystemReader(folder).read_metadata()
    (place,) = (place for index, place in listed.storage_data.items() if index.fqn == "b")
    place.relative_path, place.offset, place.length = "../outside.pt", 0, -1
    (folder / ".metadata").write_bytes(pickle.dumps(listed))
    with pytest.raises(ValueError, match=r"outside\.pt lacks some of its bytes"):
        read_checkpoint(folder)


def test_a_list_changes_no_class_of_this_process(folder):
    changes = b"\x80\x02cpathlib\nPurePosixPath\nN}U\x06suffixU\x05.evils\x86b0"  # PurePosixPath.suffix = ".evil"
    listed = dcp.FileSystemReader(folder).read_metadata()
    (folder / ".metadata").write_bytes(changes + pickle.dumps(listed, protocol=2)[2:])
    before = PurePosixPath.__dict__.get("suffix")
    try:
        with pytest.raises(ValueError, match="is refused: it carries pickled code"):
            read_checkpoint(folder)
        assert PurePosixPath.__dict__.get("suffix") is before
    finally:
        if before is None and "suffix" in PurePosixPath.__dict__:
            del PurePosixPath.suffix


def test_a_list_that_states_more_than_the_files_hold_takes_no_memory(folder):
    listed = dcp.FileSystemReader(folder).read_metadata()
    tensor = listed.state_dict_metadata["state_dict.network.head.bias"]
    tensor.size = torch.Size([10**15])
    (folder / ".metadata").write_bytes(pickle.dumps(listed))
    with pytest.raises(ValueError, match="its tensors are larger than its files"):
        read_checkpoint(folder)
