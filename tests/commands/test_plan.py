"""``vit-attention plan``: every config and objective, classes of a user's own, and mistakes in one line."""

import re
import sys
import time

import pytest
import torch
from lightning import LightningDataModule
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tests.test_configs import CONFIGS, header_of
from vit.commands.plan import data_line, main, make_parser, planned
from vit.data import ImageFolder
from vit.objectives import OBJECTIVES

TINY = ["--data", "Digits", "--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "1"]
TINY += ["--model.num_heads", "1", "--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
WITHOUT_FOLDER = ("photos", "finetune", "multilabel")


def plan(*words):
    return planned(*make_parser().parse_known_args([str(word) for word in words]))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_has_a_plan_with_the_parameters_of_its_header(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no data are
    monkeypatch.setattr(sys, "argv", ["train.py"])
    more = ["--classes", 5, "--data.image_size", 32] if config.stem in WITHOUT_FOLDER else []
    start = ["--model.init_from", "null"] if "init_from: runs/" in config.read_text() else []
    found = plan("--config", config, "--memory", 80, "--peak", 990e12, *more, *start)
    assert found["training_flop"] > found["inference_flop"] > 0  # with 70 % of the patches dropped, 1.3 times
    assert found["largest_batch"] > 100
    if not more:
        assert re.search(rf"\b{found['parameters']:,} parameters", header_of(config))


def test_the_configs_have_every_objective():
    text = "\n".join(config.read_text() for config in CONFIGS)
    assert all(name in text for name in OBJECTIVES.keys() - {"ViTClassifier"})


def test_lines_say_parameters_operations_memory_batch_and_time(capsys):
    main([*TINY, "--devices", "2", "--memory", "1", "--peak", "1e9", "--images", "1000", "--measure_data"])
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"ViTClassifier: [\d,]+ parameters, 32-true, 2 CPUs, ddp", lines[0])
    assert [line.split(":")[0] for line in lines[1:4]] == ["operations", "memory of a device", "largest batch"]
    assert re.fullmatch(
        r"time at 40% of 0.001 TFLOP/s: 1,000 images take [\d.]+ m?s, if the data deliver [\d,]+ images/s", lines[4]
    )
    assert re.fullmatch(r"data path of this machine: [\d,]+ images/s, enough", lines[5])


class Slow(Dataset):
    """Images as dictionaries, 50 a second."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.02)
        return {"image": torch.zeros(1, 8, 8), "label": 0, "number": index}


class Own(LightningDataModule):
    """A user's own data, of which only whole batches are taken."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def train_dataloader(self):
        return DataLoader(Slow(self.count), batch_size=5, drop_last=True)


def test_data_are_measured_in_images_whatever_a_batch_is_and_named_where_they_are_the_limit(monkeypatch):
    monkeypatch.setattr("vit.commands.plan.SECONDS", 0.5)
    said = r"data path of this machine: (\d+) images/s, ([\d.]+) of what is needed: the data would be the limit"
    speed, share = map(float, re.fullmatch(said, data_line(Own(12), needed=200.0)).groups())
    assert 20 < speed <= 50
    assert share == pytest.approx(speed / 200, rel=0.05)
    assert re.fullmatch(r"data path of this machine: \d+ images/s, enough", data_line(Own(12), needed=5.0))


def test_data_without_a_batch_have_no_speed():
    with pytest.raises(ValueError, match="gives no batch: are there fewer images than a batch"):
        data_line(Own(4), needed=1.0)


def test_fit_says_the_operations_and_the_memory_of_the_plan_at_its_start(run, folder, capsys):
    run("fit", *TINY, "--trainer.max_steps", 1)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan: ")]
    flop, kept = re.match(
        r"plan: ([\d.e-]+) GFLOP an image in training; ([\d.]+) MB of weights, gradients and optimiser", line
    ).groups()
    found = plan(*TINY)
    parts = re.findall(r"([\d.]+) MB (?:weights|gradients|optimiser)", found["lines"][2])
    # A training counts a backward pass as twice the forward pass. The plan counts each product: the images need no
    # gradient.
    assert flop == f"{3 * found['inference_flop'] / 1e9:.3g}"
    assert 3 * found["inference_flop"] == pytest.approx(found["training_flop"], rel=0.05)
    assert len(parts) == 3
    assert float(kept) == pytest.approx(sum(map(float, parts)), rel=0.01)


@pytest.mark.parametrize(
    ("words", "on"),
    [
        (["--devices", 8, "--trainer.strategy", "vit.training.sharding.FullySharded"], "8 CPUs, fsdp2"),
        (["--trainer.devices", 4, "--trainer.num_nodes", 2], "8 CPUs, ddp"),
        (["--trainer.devices", 4, "--devices", 2], "2 CPUs, ddp"),
        (["--trainer.devices", "auto"], "1 CPU"),
        (["--trainer.devices", "[0,1]"], "2 CPUs, ddp"),
        (["--trainer.devices", "0,2,3"], "3 CPUs, ddp"),
    ],
)
def test_devices_and_strategy_are_those_of_the_training(words, on):
    assert plan(*TINY, *words)["lines"][0].endswith(f", {on}")


def test_images_that_are_held_out_are_not_trained_on(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / "photos" / name / f"{index}.png")
    words = ["--data", "ImageFolder", "--data.root", tmp_path / "photos", *TINY[2:], "--peak", 1e12]
    assert re.search(" 13 images take ", plan(*words, "--data.val_fraction", 0.2)["lines"][-1])  # of 20, 0.8 of 0.8


@pytest.mark.parametrize(("splits", "count"), [(("val",), 20), (("test",), 16), (("val", "test"), 20)])
def test_no_image_is_held_out_for_a_test_if_the_folder_names_a_split(splits, count, tmp_path):
    for number, folder in enumerate(tmp_path / split / name for split in ("train", *splits) for name in "ab"):
        folder.mkdir(parents=True)
        for image in range(10):
            Image.new("L", (8, 8), 10 * number + image).save(folder / f"{image}.png")
    words = ["--data", "ImageFolder", "--data.root", tmp_path, *TINY[2:], "--peak", 1e12]
    assert f" {count} images take " in plan(*words, "--data.val_fraction", 0.2)["lines"][-1]


@pytest.mark.parametrize("splits", [(), ("train", "val", "test")])
def test_images_of_a_fold_are_not_trained_on(splits, tmp_path):
    folders = [tmp_path / split for split in splits] or [tmp_path]
    for number, folder in enumerate(place / name for place in folders for name in "ab"):
        folder.mkdir(parents=True)
        for image in range(30 if splits else 90):
            Image.new("L", (8, 8), (30 * number + image) % 256).save(folder / f"{image}.png")
    words = ["--data", "ImageFolder", "--data.root", tmp_path, "--model.embed_dim", 8, "--model.depth", 1]
    words += ["--model.num_heads", 1, "--trainer.accelerator", "cpu", "--data.folds", 3, "--data.fold", 1]
    found = plan(*words, "--peak", 1e9, "--data.val_fraction", 0.1)["lines"][-1]
    data = ImageFolder(str(tmp_path), folds=3, fold=1, val_fraction=0.1)
    data.setup("fit")
    assert f" {len(data.sets['train'].labels)} images take " in found


def test_a_class_of_a_users_own_is_planned(tmp_path, monkeypatch):
    (tmp_path / "planned_module.py").write_text(
        "from vit.objectives import ViTClassifier\n\n\nclass Mine(ViTClassifier):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert plan("--model", "planned_module.Mine", *TINY)["lines"][0].startswith("Mine: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*TINY, "--peak", "0"], "--peak (0.0) must be a number above 0"),
        ([*TINY, "--memory", "-1"], "--memory (-1.0) must be a number above 0"),
        ([*TINY, "--devices", "0"], "--devices (0) must be a positive whole number"),
        ([*TINY, "--utilisation", "1.5"], "--utilisation (1.5) must be"),
        ([*TINY, "--measure_data"], "add --peak, such as 990e12"),
        (["--data", "Digits"], "the command line has no model: add --model NAME"),
        ([*TINY, "--memory", "0.00001"], "a batch of one takes"),
        ([*TINY, "--classes", "3", "--measure_data", "--peak", "1"], "--measure_data reads the images"),
        (
            ["--data", "ImageFolder", "--data.root", "nowhere", "--model.depth", "1", "--classes", "3"],
            "whose size is not known: add --data.image_size 224",
        ),
        (["--data", "ImageFolder", "--data.root", "nowhere", "--model.depth", "1"], "no folder nowhere"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_mistake_is_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line
