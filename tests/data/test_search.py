"""The search for image files below a folder."""

import os
from pathlib import Path

import pytest

from vit.data import ImageFolder, UnsortedImages
from vit.data.search import search


@pytest.fixture
def touch(tmp_path):
    def touch(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    return touch


def left_out(root):
    return {reason: [path.name for path in paths] for reason, paths in search(root).left_out.items()}


def test_nested_files_are_found_in_order_of_their_names(tmp_path, touch):
    names = ["b/z.png", "a.PNG", "b/c/d.jpg", "b/a.png", "b-c.png"]
    touch(*names)
    assert search(tmp_path).images == sorted(tmp_path / name for name in names)


@pytest.mark.parametrize("hidden", [".DS_Store", "a/.thumbnail.png", ".git/a.png", "a/.cache/b/c.png"])
@pytest.mark.parametrize("searched", ["seen", ".data"])  # a folder that is named may itself be hidden
def test_hidden_files_and_folders_are_left_out(tmp_path, touch, hidden, searched):
    touch(f"{searched}/{hidden}", f"{searched}/seen.png")
    root = tmp_path / searched
    assert search(root).images == [root / "seen.png"]
    assert left_out(root) == {"hidden": [next(part for part in Path(hidden).parts if part.startswith("."))]}


def test_what_is_no_image_is_left_out_by_its_suffix_and_the_reason(tmp_path, touch):
    touch("a.png", "notes.txt", "more/Notes.TXT", "cat.svg", "README")
    os.mkfifo(tmp_path / "pipe.png")
    assert left_out(tmp_path) == {
        ".svg: a drawing: export it as PNG": ["cat.svg"],
        ".txt: no image": ["notes.txt", "Notes.TXT"],
        "without a suffix: no image": ["README"],
        "no regular file": ["pipe.png"],
    }


def test_links_to_files_and_folders_are_followed(tmp_path, touch):
    touch("store/a.png", "store/b.png", "store/more/c.png")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one.png").symlink_to(tmp_path / "store/a.png")
    (tmp_path / "set/all").symlink_to(tmp_path / "store")
    (tmp_path / "set/gone.png").symlink_to(tmp_path / "nothing.png")
    names = ["all/a.png", "all/b.png", "all/more/c.png", "one.png"]
    assert search(tmp_path / "set").images == [tmp_path / "set" / name for name in names]
    assert left_out(tmp_path / "set") == {"link to nothing": ["gone.png"]}


def test_links_in_a_circle_end_and_a_picture_has_the_name_under_which_it_lies(tmp_path, touch):
    touch("set/b/c.png", "set/z.png")
    for name, target in (("set/a", "set/b"), ("set/y", "set/b"), ("set/b/up", "set"), ("set/self", "set/self")):
        (tmp_path / name).symlink_to(tmp_path / target)
    assert search(tmp_path / "set").images == [tmp_path / "set/b/c.png", tmp_path / "set/z.png"]
    found = left_out(tmp_path / "set")
    assert sorted(found["link to a folder that is read already"]) == ["a", "up", "y"]
    assert found["link to nothing"] == ["self"]


READS = [
    lambda root: ImageFolder(str(root)),
    lambda root: UnsortedImages(str(root), (7, 11), 3),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("locked", [".", "bee", "bee/deep"])
def test_a_folder_that_cannot_be_read_is_an_error_with_its_name(write_image, tmp_path, monkeypatch, read, locked):
    for name in ("ant/0", "ant/1", "bee/0", "bee/deep/1", "cow/0"):
        write_image(f"root/{name}.png")
    folder, iterdir = tmp_path / "root" / locked, Path.iterdir

    def refusing(path):  # tests may run as root, whom no permission stops
        if path == folder:
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    message = (
        rf"^cannot read the folder {folder}: Permission denied; allow it \(chmod u\+rx\), or move the folder elsew"
    )
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "root")


@pytest.mark.parametrize("read", READS)
def test_a_folder_whose_files_cannot_be_reached_is_an_error_with_its_name(write_image, tmp_path, monkeypatch, read):
    for name in ("ant/0", "bee/0"):
        write_image(f"root/{name}.png")
    is_dir = Path.is_dir

    def refusing(path):
        if path == tmp_path / "root/bee/0.png":
            raise PermissionError(13, "Permission denied")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refusing)
    with pytest.raises(ValueError, match=f"^cannot read the folder {tmp_path}/root/bee: Permission denied"):
        read(tmp_path / "root")
