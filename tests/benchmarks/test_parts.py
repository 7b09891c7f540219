"""Lines of trainings, by which results find what they were measured with."""

import re

import pytest
from parts import PARTS, typed

FIT = "python train.py fit --config configs/digits.yaml"


@pytest.mark.parametrize(
    ("further", "kept"),
    [
        ("--seed_everything 6 --experiment tried --trainer.max_steps 70", ""),
        ("--data ImageFolder --data.root 'my photos' --data.skip_damaged true", ""),
        ("--trainer.max_epochs=-1 --model.depth=2", " --model.depth=2"),
        ("--model.init_from runs/a/version_0/checkpoints/last.ckpt --model.freeze 3", " --model.freeze 3"),
        ("--model.init_from=runs/a/checkpoints/last.ckpt", ""),
        ("--model.init_from cifar10", " --model.init_from cifar10"),
        ("--data.policy randaugment", " --data.policy randaugment"),
    ],
)
def test_a_line_has_what_changes_the_first_steps_on_fixed_images(further, kept):
    assert typed({"command": f"{FIT} {further}"}) == f"--config configs/digits.yaml{kept}"


def test_the_command_of_the_training_comes_before_that_of_the_measurement():
    cell = {"command": "python benchmarks/decoders.py x.ckpt", "training": {"command": FIT}}
    assert typed(cell) == "--config configs/digits.yaml"


def test_parts_of_one_file_share_its_cells_without_overlap():
    names = {
        "accuracy": ("digits, cpu, seed 6", "cifar10, cpu, seed 0", "timm ViT 96x6, AdamW, cpu, seed 1"),
        "explanations": (
            "cifar10_quick, seed 0",
            "planted_digits, seed 1",
            "crowded_digits, seed 0",
            "cifar10_showcase, seed 0",
        ),
        "decoders": ("generation", "read_digits, seed 2", "complete_cifar, seed 0", "mask_digits, seed 1"),
    }
    for file, cells in names.items():
        for cell in cells:
            assert sum(part.file == file and bool(re.fullmatch(part.cells, cell)) for part in PARTS.values()) == 1, cell
