"""The benchmark of fine-tuning, with trainings that take no time."""

import json
from pathlib import Path

import finetune
import pytest
import torch
from finetune import COUNTS, LEARNED, PRETRAINED_ON, ROWS, SEEDS, arguments_of, interval, linked, main, same_blocks

import train
import vit
from tests.tiny import CPU
from vit import VisionTransformer
from vit.commands.training_cli import ViTCLI

ROOT = Path(__file__).parents[2]


@pytest.fixture
def images(save_noise, tmp_path):
    """A folder with five training images and three test images of each class of CIFAR-10."""
    for name in (*PRETRAINED_ON, *LEARNED):
        save_noise(tmp_path / "images/train" / name, 5)
        save_noise(tmp_path / "images/test" / name, 3)
    return tmp_path / "images"


def names_of(folder, split):
    return {path.name: sorted(file.name for file in path.iterdir()) for path in (folder / split).iterdir()}


def test_a_draw_has_some_training_images_of_each_class_and_all_of_its_test_images(images, tmp_path):
    folders = [linked(images, tmp_path / f"draw_{seed}", LEARNED, 2, seed) for seed in (0, 2)]
    for folder in folders:
        assert {name: len(files) for name, files in names_of(folder, "train").items()} == dict.fromkeys(LEARNED, 2)
        assert {name: len(files) for name, files in names_of(folder, "test").items()} == dict.fromkeys(LEARNED, 3)
    first, second = (names_of(folder, "train") for folder in folders)
    assert first != second
    again = linked(images, tmp_path / "again", LEARNED, 2, 0)
    assert names_of(again, "train") == first


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("count", COUNTS)
def test_the_command_line_takes_each_row(row, count, images, tmp_path, monkeypatch):
    monkeypatch.setattr(ViTCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["train.py"])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    folder = linked(images, tmp_path / "few", LEARNED, 4)
    source = VisionTransformer(embed_dim=96, depth=6, num_heads=3, mlp_ratio=2, pool="cls+mean")
    vit.save(source, tmp_path / "source.safetensors")
    cli = train.main(["fit", *arguments_of(row, tmp_path / "source.safetensors", folder, count, 1), *CPU])
    model = cli.model.network
    assert (model.embed_dim, len(model.blocks), model.num_classes, model.patch_embed.grid_size) == (96, 6, 5, (8, 8))
    assert sum(map(torch.numel, model.parameters())) == sum(map(torch.numel, source.parameters())) - 5 * (2 * 96 + 1)
    assert (cli.model.hparams.init_from is None) == ("scratch" in row)
    assert cli.config["fit"].seed_everything == 1


def test_each_training_is_a_cell_and_an_interrupted_comparison_is_continued(images, tmp_path, monkeypatch, unpadded):
    given = []

    def train(name, typed):
        given.append(name)
        value = 0.8 if "scratch" not in name else 0.5
        facts = {"test_accuracy": value + 0.01 * len(given), "epochs": 3, "steps": 9, "seconds": 1.0}
        return facts | {"parameters": 99, "precision": "32-true", "seed": 0, "command": "python train.py fit"}

    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=6, num_heads=3)
    monkeypatch.setattr(finetune, "train", train)
    monkeypatch.setattr(finetune, "newest_checkpoint", lambda *_: tmp_path / "source/checkpoints/last.ckpt")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/results.json").write_text('{"finished": true}')
    monkeypatch.setattr(finetune.vit, "load", lambda _: model)
    monkeypatch.chdir(tmp_path)
    typed = ["--data", str(images), "--output", str(tmp_path)]
    main(typed)
    assert len(given) == len(ROWS) * len(COUNTS) * len(SEEDS)
    cells = json.loads((tmp_path / "finetune.json").read_text())
    assert len(cells) == len(given)
    assert {cell["row"] for cell in cells.values() if "frozen_as_before" in cell} == {
        "fine-tuned, 3 of 6 blocks frozen",
        "linear probe",
    }
    report = unpadded((tmp_path / "finetune.md").read_text())
    assert "Frozen blocks were bit for bit as before in 12 of 12 trainings." in report
    # Trainings 1, 6 and 11 of 20 images; the better one from scratch is the fifth of each five.
    assert "| fine-tuned | 86.0 ± 5.0 | +26.0 (+26.0 to +26.0) |" in report
    main(typed)
    assert len(given) == len(cells)


def test_blocks_that_differ_in_a_bit_are_noticed():
    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=3, num_heads=3)
    other = VisionTransformer(**model.config)
    other.load_state_dict(model.state_dict())
    assert same_blocks(model, other, "3")
    with torch.no_grad():
        other.blocks[1].norm1.bias[2] += 1e-7
    assert not same_blocks(model, other, "2")
    assert same_blocks(model, other, "1")


def test_the_interval_is_that_of_student_with_two_degrees_of_freedom():
    # The standard error of 1, 2, 3 is 1 / sqrt(3) = 0.577, times 4.303.
    assert interval([1.0, 2.0, 3.0]) == "+2.0 (-0.5 to +4.5)"
    assert interval([1.0, 2.0]) == ""


@pytest.mark.parametrize(
    ("results", "asked"),
    [
        (None, [*finetune.PRETRAINING, "--data", "ImageFolder", "--data.root", "work/source"]),
        ({"steps": 3}, ["--ckpt_path", "runs/finetune_source/version_0/checkpoints/last.ckpt"]),
        ({"steps": 9, "finished": True}, None),
    ],
    ids=["none", "interrupted", "finished"],
)
def test_the_first_training_is_begun_continued_or_taken(results, asked, images, tmp_path, monkeypatch):
    checkpoint = Path("runs/finetune_source/version_0/checkpoints/last.ckpt")
    given = []

    def write(run_results):
        (tmp_path / checkpoint).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / checkpoint).touch()
        (tmp_path / checkpoint.parents[1] / "results.json").write_text(json.dumps(run_results))

    def train(_, typed):
        given.append(typed)
        write({"finished": True})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune, "train", train)
    if results is not None:
        write(results)
    assert finetune.pretrained(images, Path("work")) == checkpoint
    assert given == ([] if asked is None else [asked])
