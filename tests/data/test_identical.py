"""Identical images: files with the same bytes."""

import re
import shutil
from collections import Counter
from itertools import chain

import pytest

from vit.data import ImageFolder
from vit.data import identical as module
from vit.data.identical import find_identical, same_bytes

DROP = {"duplicates": "drop", "val_fraction": 0.0, "test_fraction": 0.0}


@pytest.fixture
def plant(write_image, tmp_path):
    """Write three images of two classes in these splits, and copies of some."""

    def plant(stages=("train", "val", "test"), copies=()):
        for stage in stages:
            for name in ("ant", "bee"):
                for number in range(3):
                    write_image(f"root/{stage}/{name}/{number}.png")
        for source, copy in copies:
            shutil.copy(tmp_path / "root" / source, tmp_path / "root" / copy)
        return tmp_path / "root"

    return plant


def names(data):
    return {stage: [str(path.relative_to(data.root)) for path in paths] for stage, (paths, _) in data.splits.items()}


def dropped(root, **options):
    """The files that drop leaves out."""
    before, after = (Counter(chain(*names(ImageFolder(str(root), **options)).values())) for options in ({}, DROP))
    return sorted(before - after)


def said(root, **options):
    return ImageFolder(str(root), **options).identical


def test_without_copies_nothing_is_said_and_nothing_dropped(plant):
    root = plant()
    assert said(root) == said(root, duplicates="error") == said(root, duplicates="drop") == []
    assert dropped(root) == []


@pytest.mark.parametrize(
    ("copies", "line", "gone"),
    [
        (
            [("train/ant/0.png", "train/bee/x.png")],
            "identical images in several classes, of which at most one is right: 1 (train/ant/0.png = train/bee/x.png)",
            ["train/ant/0.png", "train/bee/x.png"],
        ),
        (
            [("train/ant/0.png", "test/bee/x.png"), ("train/ant/0.png", "val/ant/y.png")],
            "identical images in several classes, of which at most one is right: 1 ("
            "train/ant/0.png = val/ant/y.png = test/bee/x.png)",
            ["test/bee/x.png", "train/ant/0.png", "val/ant/y.png"],
        ),
        (
            [("train/ant/0.png", "test/ant/x.png"), ("train/ant/0.png", "train/ant/y.png")],
            "identical images in several splits, which makes the scores too good: 1 ("
            "train/ant/0.png = train/ant/y.png = test/ant/x.png)",
            ["train/ant/0.png", "train/ant/y.png"],
        ),
        (
            [("train/ant/0.png", "val/ant/x.png"), ("val/bee/2.png", "test/bee/y.png")],
            "identical images in several splits, which makes the scores too good: 2 ("
            "train/ant/0.png = val/ant/x.png, val/bee/2.png = test/bee/y.png)",
            ["train/ant/0.png", "val/bee/2.png"],
        ),
        (
            [("test/ant/0.png", "test/ant/x.png")],
            "identical images under several names: 1 (test/ant/0.png = test/ant/x.png)",
            ["test/ant/x.png"],
        ),
    ],
)
def test_copies_are_named_refused_or_left_out(plant, copies, line, gone):
    root = plant(copies=copies)
    assert said(root) == [line, "  --data.duplicates drop leaves copies out"]
    with pytest.raises(
        ValueError, match=f"^{re.escape(line)}: delete the copies, or leave them out by --data.duplicates drop$"
    ):
        said(root, duplicates="error")
    assert dropped(root) == gone
    assert said(root, duplicates="drop") == [line]


def test_copies_that_a_split_may_part_are_named_as_such(plant):
    root = plant(["train", "test"], [("train/ant/0.png", "train/ant/x.png")])
    line = "identical images under several names{}: 1 (train/ant/0.png = train/ant/x.png)"
    assert said(root)[0] == line.format(", and the split may part them")
    assert said(root, val_fraction=0.0)[0] == said(root, duplicates="drop")[0] == line.format("")


def test_a_link_to_an_image_is_a_copy(plant):
    root = plant()
    (root / "train/bee/link.png").symlink_to(root / "train/ant/0.png")
    assert dropped(root) == ["train/ant/0.png", "train/bee/link.png"]


@pytest.mark.parametrize("stage", ["val", "train"])
def test_a_split_of_copies_alone_is_an_error(plant, stage):
    names = [f"{name}/{number}.png" for name in ("ant", "bee") for number in range(3)]
    root = plant(copies=[(f"test/{name}", f"{stage}/{name}") for name in names])
    with pytest.raises(ValueError, match=f"--data.duplicates drop leaves no {stage} image$"):
        said(root, duplicates="drop")


def test_where_all_training_images_contradict_each_other_nothing_can_be_trained(plant):
    root = plant(["train"], [(f"train/ant/{number}.png", f"train/bee/{number}.png") for number in range(3)])
    with pytest.raises(ValueError, match=r"--data.duplicates drop leaves no train image$"):
        said(root, duplicates="drop")


def test_an_unknown_choice_is_named(plant):
    with pytest.raises(ValueError, match=r"^unknown duplicates 'ignore': choose 'warn', 'error' or 'drop'$"):
        said(plant(), duplicates="ignore")


def test_labels_may_be_rows(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"same")
    found = find_identical(
        {"train": ([tmp_path / "a", tmp_path / "b", tmp_path / "c"], [[1.0, 0.0]] * 2 + [[1.0, 1.0]])}
    )
    assert [len(group) for group in found.across_classes] == [3]
    found = find_identical({"train": ([tmp_path / "a", tmp_path / "b"], [[1, 2, 3]] * 2)})
    assert [len(group) for group in found.others] == [2]


def test_only_the_bytes_decide(tmp_path):
    contents = [b"", b"", b"one", b"two", b"two", b"three", b"one"]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert same_bytes([*paths, tmp_path / "gone"]) == [[2, 6], [3, 4]]


def test_files_of_a_size_that_no_other_has_are_not_read(tmp_path, monkeypatch):
    for size in range(1, 4):
        (tmp_path / str(size)).write_bytes(bytes(size))
    monkeypatch.setattr("pathlib.Path.open", lambda *args, **kwargs: pytest.fail("read"))
    assert same_bytes(sorted(tmp_path.iterdir())) == []


def test_what_was_found_among_many_files_is_kept_until_one_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_QUICKLY", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"same")
    read_all = module._read_all
    assert same_bytes(paths) == [[0, 1, 2]]
    monkeypatch.setattr(module, "_read_all", lambda *args: pytest.fail("read again"))
    assert same_bytes(paths) == [[0, 1, 2]]
    monkeypatch.setattr(module, "_read_all", read_all)
    paths[1].write_bytes(b"nose")
    assert same_bytes(paths) == [[0, 2]]


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_damaged_or_missing_cache_is_made_again(tmp_path, monkeypatch, content):
    monkeypatch.setattr(module, "READ_QUICKLY", 0)
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"same")
    same_bytes(paths)
    (kept,) = module.cache_folder().iterdir()
    whole = kept.read_text()
    kept.unlink() if content is None else kept.write_text(content)
    assert same_bytes(paths) == [[0, 1]]
    assert kept.read_text() == whole
