"""What a checkpoint brings to a command line."""

import pytest
import torch

from vit.commands.defaults import read_defaults
from vit.commands.typed_arguments import read_typed


@pytest.fixture
def of_folder(finished) -> str:
    """A checkpoint that was trained on the folder ``photos``."""
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.ImageFolder", "init_args": {"root": "photos", "batch_size": 7}}
    torch.save(checkpoint, path)
    return str(path)


@pytest.mark.parametrize(
    ("typed", "root"),
    [([], "photos"), (["--data", "ImageFolder"], "photos"), (["--data", "ImageTable", "--data.table", "t.csv"], None)],
    ids=["no data", "the same", "others"],
)
def test_the_folder_of_the_training_is_not_that_of_other_data(of_folder, typed, root):
    defaults = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed]))
    arguments = defaults.arguments["data"]["init_args"]
    assert (arguments.get("root"), arguments["batch_size"]) == (root, 7)


def test_a_table_that_is_missing_is_asked_for(error_of, of_folder):
    answer = error_of("test", "--ckpt_path", of_folder, "--data", "ImageTable")
    assert answer == "error: an argument is missing: add --data.table, for ImageTable"
