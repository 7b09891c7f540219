"""The command ``vit-attention shards``, and trainings on what it writes, in one process and in two."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from PIL import Image

from tests.commands.test_distributed import started_from_outside
from tests.data.shard_sets import picture
from tests.tiny import CPU, MODEL, run_command
from vit.commands import shards
from vit.data import ImageFolder, Shards

OPTIONS = ["--per_shard", "11", "--workers", "0"]


def save_folder(folder: Path) -> Path:
    """40 training images of two classes, 9 for validation and 7 for test, of another level each."""
    first = 0
    for split, count in (("train", 40), ("val", 9), ("test", 7)):
        for number in range(first, first + count):
            path = folder / split / ("ant", "bee")[number % 2] / f"{number}.a.PNG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number))
        first += count
    return folder


@pytest.fixture
def photos(tmp_path):
    return save_folder(tmp_path / "photos")


def write(photos, name="shards", *options):
    """Run the command, and return the folder that it wrote."""
    shards.main([str(photos), str(photos.parent / name), *OPTIONS, *options])
    return photos.parent / name


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".shards.lock"}


def classes_by_level(data):
    found = {}
    for stage, part in data.load_sets().items():
        images, labels = part.decode(torch.arange(len(part.labels)))
        classes = [data.class_names[label] for label in labels.tolist()]
        found[stage] = dict(zip(images[:, 0, 0, 0].tolist(), classes, strict=True))
    return found


def test_the_shards_hold_the_images_of_the_folder_and_the_printed_command_names_them(photos, capsys):
    folder = write(photos)
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == f"{folder}: 56 images of 2 classes in 6 shards"
    assert said[-1] == (
        f'train with: vit-attention fit --data Shards --data.urls "{folder}/train-{{000000..000003}}.tar" '
        f'--data.val_urls "{folder}/val-000000.tar" --data.test_urls "{folder}/test-000000.tar"'
    )
    urls = (f"{folder}/train-{{000000..000003}}.tar", f"{folder}/val-000000.tar", f"{folder}/test-000000.tar")
    data = Shards(*urls, num_workers=0)
    assert classes_by_level(data) == classes_by_level(ImageFolder(str(photos), num_workers=0))
    assert data.identical == []


def test_what_is_left_out_of_the_shards_is_told_with_what_is_in_them(photos, capsys):
    (photos / "train/ant/scan.jp2").touch()
    (photos / "train/cow").mkdir()
    (photos / "train/bee/copy.png").write_bytes(picture(1))
    write(photos)
    said = capsys.readouterr().out.splitlines()
    assert said[: said.index("left out: 2") + 4] == [
        f"images of 2 classes in {photos}: 41 train, 9 val, 7 test",
        "       train  val  test",
        "  ant     20    5     3",
        "  bee     21    4     4",
        "left out: 2",
        "  1 .jp2: a format that is not read: save it as PNG (train/ant/scan.jp2)",
        "  1 folder without images (train/cow)",
        "identical images under several names: 1 (train/bee/1.a.PNG = train/bee/copy.png)",
    ]


def test_the_manifest_counts_images_and_has_the_checksum_of_each_shard(photos):
    folder = write(photos)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["classes"] == ["ant", "bee"]
    assert {name: entry["images"] for name, entry in manifest["shards"].items()} == {
        **{f"train-{number:06}.tar": 11 for number in range(3)},
        "train-000003.tar": 7,
        "val-000000.tar": 9,
        "test-000000.tar": 7,
    }
    import hashlib

    for name, entry in manifest["shards"].items():
        content = (folder / name).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_images_of_a_shard_come_from_the_whole_set(photos):
    data = Shards(f"{write(photos)}/train-000000.tar", num_workers=0, val_fraction=0, test_fraction=0)
    levels = classes_by_level(data)["train"]
    assert len(levels) == 11
    assert max(levels) - min(levels) > 20
    assert len(set(levels.values())) == 2


def test_several_processes_write_the_same_bytes(photos):
    assert contents(write(photos, "two", "--workers", "2")) == contents(write(photos, "one"))


def test_a_stopped_write_goes_on_and_ends_with_the_same_bytes(photos, monkeypatch):
    whole, written = contents(write(photos, "whole")), []

    def stop(*_):
        raise KeyboardInterrupt

    def write_two(shard, files):
        written.append(shard.name)
        return keep(shard, files) if len(written) < 3 else stop()

    from vit.data import shard_files

    keep = shard_files.write_shard
    monkeypatch.setattr(shard_files, "write_shard", write_two)
    with pytest.raises(SystemExit):
        write(photos)
    stopped = photos.parent / "shards"
    times = {path.name: path.stat().st_mtime_ns for path in stopped.glob("*.tar")}
    assert len(times) == 2
    with pytest.raises(ValueError, match="are not all written: run the same vit-attention shards again"):
        Shards(f"{stopped}/train-000000.tar")
    (stopped / ".train-000002.tar.unfinished").touch()
    monkeypatch.setattr(shard_files, "write_shard", keep)
    write(photos)
    assert times.items() <= {path.name: path.stat().st_mtime_ns for path in stopped.glob("*.tar")}.items()
    (stopped / ".train-000002.tar.unfinished").unlink()
    assert contents(stopped) == whole


def test_a_shard_that_was_damaged_since_is_written_again(photos):
    folder = write(photos)
    before = contents(folder)
    os.truncate(folder / "train-000001.tar", 2000)
    assert contents(write(photos)) == before


def error_of(photos, capsys, *options):
    with pytest.raises(SystemExit) as stopped:
        write(photos, "shards", *options)
    assert stopped.value.code == 2
    return capsys.readouterr().err.strip()


def test_shards_of_other_images_or_options_are_not_mixed(photos, capsys):
    folder = write(photos)
    expected = f"error: {folder} has shards of other images or options: delete them, or name another folder"
    assert error_of(photos, capsys, "--per_shard", "12") == expected
    (photos / "train/ant/0.a.PNG").write_bytes(picture(200))
    assert error_of(photos, capsys) == expected
    (folder / "manifest.json").unlink()
    assert error_of(photos, capsys) == expected


def test_two_writers_do_not_share_a_folder(photos, capsys):
    folder = photos.parent / "shards"
    folder.mkdir()
    with FileLock(folder / ".shards.lock"):
        assert error_of(photos, capsys) == f"error: another process writes shards to {folder}: wait for it"


def test_an_image_that_cannot_be_read_is_named_and_left_out_if_asked(photos, capsys):
    damaged = photos / "train/bee/7.a.PNG"
    damaged.write_bytes(picture(7)[:40])
    message = error_of(photos, capsys)
    assert message.startswith(f"error: cannot read image {damaged}: ")
    assert message.endswith("or leave it out by --data.skip_damaged true")
    folder = write(photos, "shards", "--data.skip_damaged", "true")
    assert f"left out 1 files:\n  cannot read image {damaged}" in capsys.readouterr().out
    data = Shards(f"{folder}/train-{{000000..000003}}.tar", num_workers=0, val_fraction=0, test_fraction=0)
    assert sorted(classes_by_level(data)["train"]) == [number for number in range(40) if number != 7]


def test_images_that_are_not_read_as_expected_are_told(photos, capsys):
    Image.fromarray(np.full((5, 6), 2000, np.uint16)).save(photos / "train/bee/deep.png")  # 12 bits in 16
    write(photos)
    assert "multiply them by 16): 1 (train/bee/deep.png)\n" in capsys.readouterr().out


def test_images_without_classes_have_none_in_their_shards(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(23):
        (tmp_path / f"photos/{number}.png").write_bytes(picture(number))
    data = Shards(f"{write(tmp_path / 'photos')}/train-{{000000..000002}}.tar")
    assert (data.num_classes, len(data.splits["train"][0])) == (0, 23)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--per_shard", "0"], "error: --per_shard (0) must be a positive whole number: 10000 is usual"),
        (["--workers", "-1"], "error: --workers (-1) must be"),
    ],
)
def test_options_out_of_range_are_a_line(photos, capsys, options, message):
    assert error_of(photos, capsys, *options).startswith(message)


def test_a_folder_that_is_not_there_is_a_line(tmp_path, capsys):
    assert error_of(tmp_path / "none", capsys).startswith(f"error: no folder {tmp_path}/none: name the folder of the")


# trainings


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the shards, and the options of a training on them."""
    root = tmp_path_factory.mktemp("workplace")
    write(save_folder(root / "photos"))
    return root


URLS = [
    *("--data", "Shards", "--data.urls", "shards/train-{000000..000003}.tar"),
    *("--data.val_urls", "shards/val-000000.tar", "--data.test_urls", "shards/test-000000.tar"),
]
FIT = [
    *(*URLS, *MODEL, *CPU, "--data.image_size", "8", "--data.num_workers", "0", "--model.qkv_bias", "false"),
    *("--trainer.max_epochs", "2", "--trainer.callbacks+", "seen_images.SeenImages"),
    *("--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "3"),
    *("--trainer.callbacks.save_top_k", "-1", "--trainer.callbacks.dirpath"),
]
TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]


def seen(folder, world_size, epoch):
    """How often each image of an epoch was served."""
    paths = [folder / f"seen_{world_size}_{rank}.txt" for rank in range(world_size)]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return Counter(line.split()[1] for line in lines if line.startswith(f"{epoch} "))


def forget(folder):
    for path in folder.glob("seen_*.txt"):
        path.unlink()


def test_two_processes_train_on_shards_as_one_does(workplace):
    forget(workplace)
    one = started_from_outside(workplace, "one", "--data.batch_size", "10", common=[*FIT, "of_one"])
    two = started_from_outside(workplace, "two", "--data.batch_size", "5", *TWO, processes=2, common=[*FIT, "of_two"])
    for epoch in (0, 1):
        counts = seen(workplace, 2, epoch)
        assert set(counts.values()) == {1}
        assert len(counts) == 40
        assert counts == seen(workplace, 1, epoch)
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    results = [json.loads((run / "results.json").read_text()) for run in (one, two)]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"] is not None
    assert results[0]["data"] == "Shards shards"
    assert (one / "report.html").exists()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_an_epoch_goes_on_in_another_number_of_processes_with_the_images_that_are_left(workplace, before, after):
    forget(workplace)
    name = f"of_{before}_{after}"
    processes = {1: [], 2: TWO}
    typed = ["--data.batch_size", "5", *processes[before]]
    started_from_outside(workplace, f"{name}_before", *typed, processes=before, common=[*FIT, name])
    checkpoint = next((workplace / name).glob("epoch=0-step=3*.ckpt"))
    order = seen(workplace, before, 0)
    forget(workplace)
    common = [*FIT, name, "--ckpt_path", str(checkpoint)]
    typed = ["--data.batch_size", "5", *processes[after]]
    run = started_from_outside(workplace, f"{name}_after", *typed, processes=after, common=common)
    rest, whole = seen(workplace, after, 0), seen(workplace, after, 1)
    left = 40 - 3 * 5 * before
    assert sum(rest.values()) == left - left % (5 * after)
    assert set(rest.values()) == {1}
    assert rest.keys() <= order.keys()
    assert set(whole.values()) == {1}
    assert len(whole) == 40
    steps = 3 + left // (5 * after) + 40 // (5 * after)
    assert json.loads((run / "results.json").read_text())["steps"] == steps


def test_a_run_on_shards_resumes_with_the_same_bits_and_is_tested_and_predicts(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    common = [*FIT, "resumed", "--data.batch_size", "10", "--data.flip", "true", "--experiment", "whole"]
    run_command("fit", *common)
    checkpoint = next((workplace / "resumed").glob("epoch=0-step=3*.ckpt"))
    run_command("fit", *common, "--ckpt_path", checkpoint)
    runs = [workplace / f"runs/whole/version_{number}" for number in (0, 1)]
    first, second = (torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    run_command("test", "--ckpt_path", runs[0])
    tested = json.loads((runs[0] / "evaluations/test_last_0/results.json").read_text())
    assert tested["test_accuracy"] == json.loads((runs[0] / "results.json").read_text())["test_accuracy"]
    run_command("predict", "--ckpt_path", runs[0], "--data.root", "photos/test")
    assert len((runs[0] / "predictions.csv").read_text().splitlines()) == 1 + 7


def test_the_config_of_a_run_runs_no_command_that_is_not_typed(finished, error_of):
    config = finished / "config.yaml"
    content = yaml.safe_load(config.read_text())
    content["data"] = {"class_path": "vit.data.Shards", "init_args": {"urls": "pipe:touch hacked"}}
    config.write_text(yaml.safe_dump(content))
    resume = ["fit", "--ckpt_path", finished / "checkpoints/last.ckpt", "--trainer.max_epochs", "3"]
    message = error_of(*resume)
    assert message == (
        f"error: the config of {finished} names its shards by a command: type it by --data.urls, if you trust it"
    )
    assert "pipe:exit 3 ended with status 3" in error_of(*resume, "--data.urls", "pipe:exit 3")
    assert not Path("hacked").exists()


def test_a_checkpoint_runs_no_command_that_it_names(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    brief = ["--data.image_size", "8", "--trainer.max_steps", "1", "--experiment", "brief"]
    run_command("fit", *URLS, *MODEL, *CPU, *brief)
    path = workplace / "runs/brief/version_0/checkpoints/last.ckpt"
    content = torch.load(path, weights_only=True)
    content["data"]["init_args"]["urls"] = "pipe:touch hacked; cat shards/train-000000.tar"
    torch.save(content, path)
    with pytest.raises(SystemExit):
        run_command("test", "--ckpt_path", path)
    assert "names its shards by a command: type it by --data.urls, if you trust it" in capsys.readouterr().err
    assert not Path("hacked").exists()
