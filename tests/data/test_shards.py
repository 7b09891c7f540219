"""Training on tar shards: each image once an epoch, over any processes and workers, also after a resume."""

import io
import json
import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.shard_sets import picture, write_manifest, write_shards, write_tar
from vit.data import Shards
from vit.data.shard_files import Members
from vit.data.shards import check_no_command

NUMBERS = [str(number % 3) for number in range(23)]
NAMES = ["ant", "bee", "cow"]
NONE = {"num_workers": 0, "val_fraction": 0.0, "test_fraction": 0.0}


def module(urls, **kwargs):
    return Shards(urls, **NONE | kwargs)


def ready(data, stage="fit"):
    data.setup(stage)
    return data


def processes(data, count):
    """The data module as each of several processes has it."""
    for rank in range(count):
        strategy = SimpleNamespace(root_device=torch.device("cpu"))
        data.trainer = SimpleNamespace(global_rank=rank, world_size=count, strategy=strategy, overfit_batches=0)
        yield data.train_dataloader()


def levels(batches):
    """The number of each image."""
    return [int(level) for images, _ in batches for level in images[:, 0, 0, 0]]


@pytest.fixture
def urls(tmp_path):
    return write_shards(tmp_path / "shards", NUMBERS)


def test_images_and_classes_are_those_of_the_tar(urls, capsys):
    data = ready(module(urls))
    images, labels = data.sets["train"].decode(torch.arange(23))
    assert (data.image_size, data.in_channels, data.class_names) == ((5, 6), 1, ["0", "1", "2"])
    assert sorted(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True)) == [(n, n % 3) for n in range(23)]
    assert data.sets["train"].name(22) == "train-000002.tar/020.png"
    assert capsys.readouterr().out.startswith("images of 3 classes in")
    assert isinstance(data.sets["train"].images.paths, Members)


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (3, 0), (2, 2)])
def test_no_image_is_seen_twice_an_epoch_and_those_that_fill_no_batch_are_the_others(urls, world_size, workers):
    loaders = [*processes(ready(module(urls, batch_size=3, num_workers=workers)), world_size)]
    seen = Counter()
    for loader in loaders:
        loader.begin_epoch(4)
        seen.update(levels(loader))
    assert set(seen.values()) == {1}
    assert len(seen) == 23 - 23 % (3 * world_size)


def test_the_order_is_drawn_anew_each_epoch_over_all_shards(urls):
    (loader,) = processes(ready(module(urls, batch_size=23)), 1)
    orders = []
    for number in range(12):
        loader.begin_epoch(number)
        orders.append(levels(loader))
    assert len({tuple(order) for order in orders}) == 12
    # An image of any shard follows one of any other, about equally often.
    pairs = Counter((one % 3, other % 3) for order in orders for one, other in pairwise(order))
    assert len(pairs) == 9
    assert max(pairs.values()) < 3 * min(pairs.values())


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("served", [1, 2])
def test_an_epoch_goes_on_with_the_same_remaining_images_in_any_number_of_processes(urls, before, after, served):
    data = ready(module(urls, batch_size=2))
    (alone,) = processes(ready(module(urls, batch_size=1)), 1)
    alone.begin_epoch(3)
    order = levels(alone)
    states = []
    for loader in processes(data, before):
        loader.begin_epoch(3)
        for number, _ in enumerate(loader, start=1):
            if number == served:
                states.append(loader.state_dict())
                break
    assert all(state == states[0] for state in states)
    seen = Counter()
    for loader in processes(data, after):
        loader.load_state_dict(states[0])
        loader.sampler.set_epoch(3)
        seen.update(levels(loader))
    remaining = order[served * 2 * before :]
    assert seen == Counter(remaining[: len(remaining) // (2 * after) * 2 * after])


def test_evaluation_takes_every_image_once(tmp_path, urls):
    tests = write_shards(tmp_path / "shards", NUMBERS[:11], 2, "test", first=100)
    data = ready(module(urls, test_urls=tests, batch_size=4))
    assert sorted(levels(data.test_dataloader())) == [*range(100, 111)]


def test_missing_splits_are_held_out(urls):
    data = ready(module(urls, val_fraction=0.2, test_fraction=0.2))
    parts = {stage: levels([part.decode(torch.arange(len(part.labels)))]) for stage, part in data.sets.items()}
    assert sorted(parts["train"] + parts["val"] + parts["test"]) == [*range(23)]
    assert parts.keys() == {"train", "val", "test"}
    assert min(map(len, parts.values())) >= 3


def test_missing_test_shards_are_a_line(tmp_path, urls):
    data = ready(module(urls, val_urls=write_shards(tmp_path / "shards", NUMBERS[:11], 2, "val", first=100)))
    assert sorted(levels(data.val_dataloader())) == [*range(100, 111)]
    with pytest.raises(ValueError, match=r"Shards has no test images: name them by --data.test_urls, or run validate"):
        data.test_dataloader()
    with pytest.raises(ValueError, match=r"Shards has no validation images: name them by --data.val_urls, or run test"):
        module(urls).setup("validate")


def test_a_shard_is_of_one_split(urls):
    with pytest.raises(ValueError, match=r"train-000000\.tar is named twice"):
        module(urls, test_urls=urls)


@pytest.mark.parametrize("other", ["shards/train-000000.tar", "link.tar"])
def test_a_shard_is_of_one_split_however_it_is_spelt(tmp_path, urls, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.tar").symlink_to("shards/train-000000.tar")
    with pytest.raises(ValueError, match=f"^{tmp_path}/shards/train-000000.tar is named twice, also as {other}: a sha"):
        module(urls, test_urls=other)


def test_folds_cut_training_and_validation_shards(tmp_path, urls):
    more = write_shards(tmp_path / "shards", NUMBERS[:11], 2, "val", first=100)
    tested = []
    for fold in range(3):
        data = ready(module(urls, val_urls=more, folds=3, fold=fold))
        whole = [part.decode(torch.arange(len(part.labels))) for part in data.sets.values()]
        assert sorted(levels(whole)) == [*range(23), *range(100, 111)]
        tested += levels(data.test_dataloader())
    assert sorted(tested) == [*range(23), *range(100, 111)]


def test_names_are_classes_and_the_manifest_says_the_order(tmp_path):
    folder = tmp_path / "shards"
    urls = write_shards(folder, [NAMES[int(number)] for number in NUMBERS])
    assert module(urls).class_names == NAMES
    write_manifest(folder, ["cow", "bee", "ant", "dog"])
    data = ready_with_classes(module(urls))
    assert data.class_names == ["cow", "bee", "ant", "dog"]
    assert labels_of(data) == {level: 2 - level % 3 for level in range(23)}


def ready_with_classes(data):
    data.sets = data.load_sets()
    return data


def labels_of(data):
    part = data.sets["train"]
    images, labels = part.decode(torch.arange(len(part.labels)))
    return dict(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))


def test_numbers_are_those_of_the_classes_of_the_manifest(tmp_path, urls):
    write_manifest(tmp_path / "shards", ["cow", "bee", "ant"])
    data = ready_with_classes(module(urls))
    assert data.class_names == ["cow", "bee", "ant"]
    assert labels_of(data) == {level: level % 3 for level in range(23)}


def test_a_test_of_a_trained_model_matches_classes_by_name(tmp_path, urls):
    write_manifest(tmp_path / "shards", ["cow", "bee", "ant"])
    data = ready_with_classes(module(urls, class_names=["ant", "bee", "cow", "dog"]))
    assert data.class_names == ["ant", "bee", "cow", "dog"]
    assert labels_of(data) == {level: 2 - level % 3 for level in range(23)}


def test_a_number_that_is_the_name_of_one_class_and_the_place_of_another_is_refused(tmp_path):
    known = sorted(str(number) for number in range(12))  # 0, 1, 10, 11, 2, ...
    urls = write_shards(tmp_path, ["0", "1", "2"] * 8)
    message = f"^{tmp_path} has images of class 2, which is a name among those of the model and the place of 10, "
    with pytest.raises(ValueError, match=message):
        module(urls, class_names=known)
    for names in (NAMES, ["0", "1", "2"], ["2019", "2020", "2021"]):
        assert labels_of(ready_with_classes(module(urls, class_names=names))) == {n: n % 3 for n in range(24)}
    write_manifest(tmp_path, ["0", "1", "10"])
    labels = labels_of(ready_with_classes(module(urls, class_names=known)))
    assert labels == {level: level % 3 for level in range(24)}


@pytest.mark.parametrize("numbers", [["1", "2"], ["20231105001", "20231105002"]])
def test_numbers_that_leave_some_out_are_refused_unless_they_are_named(tmp_path, numbers):
    urls = write_shards(tmp_path, numbers * 6)
    message = (
        f"^{tmp_path} has 2 classes, numbered up to {numbers[1]}: number them from 0 to 1, or name all of them by "
        "--data.class_names$"
    )
    with pytest.raises(ValueError, match=message):
        module(urls)
    named = ready_with_classes(module(urls, class_names=numbers))
    assert (named.class_names, labels_of(named)) == (numbers, {level: level % 2 for level in range(12)})


def test_a_command_is_found_also_among_several_names():
    with pytest.raises(ValueError, match=r"^a\.ckpt names its shards by a command: type it by --data\.val_urls"):
        check_no_command({"urls": "a-{0..3}.tar", "val_urls": "{pipe:touch hacked;,b}.tar"}, "a.ckpt")
    check_no_command({"urls": "a-{0..3}.tar", "val_urls": None}, "a.ckpt")


def test_images_without_classes_train_what_needs_none(tmp_path):
    urls = write_shards(tmp_path, [None] * 23)
    data = ready(module(urls))
    assert (data.num_classes, len(data.sets["train"].labels)) == (0, 23)
    assert "no image has a class" in data.without_classes
    with pytest.raises(ValueError, match="no image has a class"):
        module(urls, class_names=NAMES)


def test_one_class_is_no_classification(tmp_path):
    assert "are of one class (0): add another class" in module(write_shards(tmp_path, ["0"] * 23)).without_classes


@pytest.mark.parametrize("prefix", ["file:", "file://", "pipe:cat "])
def test_shards_are_named_as_webdataset_names_them(urls, prefix, cache_home):
    data = ready(module(prefix + urls))
    assert sorted(labels_of(data)) == [*range(23)]
    assert len([*cache_home.rglob("shards/*.tar")]) == (3 if prefix.startswith("pipe") else 0)


def test_the_output_of_a_command_is_copied_once(tmp_path, urls, capsys):
    module(f"pipe:cat {urls}")
    for shard in (tmp_path / "shards").glob("*.tar"):
        shard.unlink()
    capsys.readouterr()
    assert len(module(f"pipe:cat {urls}").splits["train"][0]) == 23
    assert "is read; delete that to run the command again" in capsys.readouterr().out


def test_identical_images_are_found_by_the_index(tmp_path):
    from vit.data.shard_files import write_shard

    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    files = [("a", 0, 0), ("b", 1, 1), ("c", 0, 0), ("d", 2, 1), ("e", 3, 0), ("f", 3, 1)]
    write_shard(tmp_path / "a.tar", [(key, tmp_path / f"{number}.png", label) for key, number, label in files])
    data = module(str(tmp_path / "a.tar"))
    assert data.identical[0].startswith(
        "identical images in several classes, of which at most one is right: 1 (a.tar/e"
    )
    assert data.identical[1] == "identical images under several names: 1 (a.tar/a.png = a.tar/c.png)"
    kept = ready(module(str(tmp_path / "a.tar"), duplicates="drop")).sets["train"].files
    assert kept == ["a.tar/a.png", "a.tar/b.png", "a.tar/d.png"]


def test_identical_images_in_shards_without_digests_are_found_if_they_are_asked_for(tmp_path, capsys):
    files = []
    for number, level in enumerate([0, 0, 1, 1, 2]):  # 2 and 3 are one image of two classes
        files += [(f"{number}.png", picture(level)), (f"{number}.cls", str(number // 3).encode())]
    url = str(write_tar(tmp_path / "a.tar", files))
    kept = ready(module(url, duplicates="drop")).sets["train"].files
    assert kept == ["a.tar/0.png", "a.tar/4.png"]
    with pytest.raises(ValueError, match=r"^identical images in several classes, .*: 1 \(a.tar/2.png = a.tar/3.png\)"):
        module(url, duplicates="error")
    assert len(ready(module(url)).sets["train"].files) == 5
    assert (
        "\n5 images are not compared, as their shards have no digests: --data.duplicates drop reads them, and leaves "
        "copies out\n"
    ) in capsys.readouterr().out


def test_images_in_memory_are_the_same(urls):
    streamed, decoded = (ready(module(urls, memory_limit=limit)) for limit in (0.0, 4.0))
    assert isinstance(decoded.sets["train"].images, torch.Tensor)
    assert labels_of(streamed) == labels_of(decoded)


def test_a_damaged_shard_is_named_and_left_out_if_asked(tmp_path, capsys):
    urls = write_shards(tmp_path, NUMBERS, shards=2)
    write_manifest(tmp_path, NAMES)
    damaged = tmp_path / "train-000001.tar"
    damaged.write_bytes(damaged.read_bytes()[:-512])
    with pytest.raises(ValueError, match=f"^{damaged} has 30,208 bytes, and manifest.json says 30,720: copy it again"):
        module(urls)
    data = ready(module(urls, skip_damaged=True))
    assert sorted(labels_of(data)) == [*range(0, 23, 2)]
    assert "1 damaged shards (train-000001.tar)" in capsys.readouterr().out


def test_a_shard_with_a_lost_image_is_named_with_both_remedies(tmp_path):
    files = [("0.png", picture(0)), ("0.cls", b"0"), ("1.crop.png", picture(1)), ("1.cls", b"1")]
    shard = write_tar(tmp_path / "a.tar", files)
    message = f"^{shard} has 1.crop.png, 1.cls, .* 1.jpg or 1.png, or leave the shard out by --data.skip_damaged true$"
    with pytest.raises(ValueError, match=message):
        module(str(shard))


def test_a_damaged_image_is_named_when_it_is_read_and_left_out_if_asked(tmp_path, capsys):
    files = [(f"{n}.png", picture(n) if n != 5 else picture(n)[:40]) for n in range(9)]
    labels = [(f"{n}.cls", str(n % 2).encode()) for n in range(9)]
    shard = write_tar(tmp_path / "a.tar", [file for pair in zip(files, labels, strict=True) for file in pair])
    with pytest.raises(
        ValueError, match=rf"^cannot read image {shard}/5.png: .*leave it out by --data.skip_damaged true"
    ):
        levels(ready(module(str(shard), batch_size=9)).train_dataloader())
    assert sorted(labels_of(ready(module(str(shard), skip_damaged=True)))) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert f"cannot read image {shard}/5.png" in capsys.readouterr().out


def test_the_first_image_of_each_kind_of_note_is_told_when_it_is_read(tmp_path, capsys):
    dark = io.BytesIO()
    Image.fromarray(np.full((5, 6), 2000, np.uint16)).save(dark, "png")  # 12 bits in 16
    files = [(f"{n}.png", dark.getvalue() if n in (4, 5) else picture(n)) for n in range(8)]
    labels = [(f"{n}.cls", str(n % 2).encode()) for n in range(8)]
    shard = write_tar(tmp_path / "a.tar", [file for pair in zip(files, labels, strict=True) for file in pair])
    loader = ready(module(str(shard), batch_size=4)).train_dataloader()
    for _ in range(2):
        levels(loader)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "nearly black" in line]
    assert re.match(rf"{shard}/[45]\.png: nearly black, .*\(printed for the first such image\)", line)
    ready(module(str(shard), memory_limit=1.0))
    assert "multiply them by 16): 2 (a.tar/4.png, a.tar/5.png)" in capsys.readouterr().out


def remove(folder):
    (folder / "train-000001.tar").unlink()


def unfinished(folder):
    (folder / "manifest.json").write_text(json.dumps({"source": "", "classes": NAMES, "shards": None}))


def empty(folder):
    write_tar(folder / "train-000001.tar", [("notes.txt", b"")])


def no_class(folder):
    write_tar(folder / "train-000001.tar", [("7.png", picture(7))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            remove,
            "no shard FOLDER/train-000001.tar, as 1 of 3 that 'FOLDER/train-{000000..000002}.tar' names: name files",
        ),
        (empty, "the shard FOLDER/train-000001.tar has no images: name the others, or write it again"),
        (
            no_class,
            "FOLDER/train-000001.tar/7.png has no class, as 1 of 16 images: add a file .cls beside it",
        ),
        (unfinished, "the shards of FOLDER are not all written: run the same vit-attention shards again"),
        (
            lambda folder: write_manifest(folder, NAMES, **{"train-000002": 9}),
            "FOLDER/train-000002.tar has 7 images, and manifest.json says 9: write the shards again",
        ),
        (
            lambda folder: write_manifest(folder, NAMES[:2]),
            "FOLDER has images of class 2, and 2 classes from 0 on (ant, bee): name all of them by --data.class_names",
        ),
        (
            lambda folder: (write_shards(folder, ["ant", "fly"] * 9), write_manifest(folder, NAMES)),
            "FOLDER has images of fly, and manifest.json names ant, bee, cow: write the shards again",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text('{"shards": {"a": {}}, "classes": []}'),
            "cannot read FOLDER/manifest.json ('images'): write the shards again, or delete it",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text('{"shards": {}, "classes": []}'),
            "FOLDER/manifest.json names no train-000000.tar: write the shards again, or delete it",
        ),
    ],
)
def test_shards_that_do_not_fit_are_a_line(tmp_path, change, message):
    folder = tmp_path / "shards"
    urls = write_shards(folder, NUMBERS)
    change(folder)
    with pytest.raises(ValueError, match="^" + re.escape(message.replace("FOLDER", str(folder)))):
        module(urls)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("", "'' names no shard"),
        ("{a,a}.tar", "a.tar is named twice: a shard belongs to one split, and its images are seen once"),
        ("none-*.tar", "no shard none-*.tar: name files as train-{000000..000127}.tar"),
        ("s3://bucket/a.tar", "s3://bucket/a.tar is on no disk: copy it, or name a command, as 'pipe:curl"),
        (
            "pipe:echo no luck >&2; exit 3",
            "pipe:echo no luck >&2; exit 3 ended with status 3 (no luck): check the command",
        ),
        ("pipe:exit 3", "pipe:exit 3 ended with status 3: check the command"),
    ],
)
def test_patterns_that_name_no_shards_are_a_line(tmp_path, monkeypatch, urls, message):
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "a.tar", [("0.png", picture(0))])
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        module(urls)
