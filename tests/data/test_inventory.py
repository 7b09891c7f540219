"""The inventory of the images of a run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit.data import ImageFolder
from vit.data.image_files import FIRST_FRAME, NEARLY_BLACK
from vit.data.inventory import Inventory

ROOT = Path("photos")


def test_a_few_classes_are_a_table_of_their_images_in_each_split():
    counts = {"train": [1200, 7, 0], "val": [3, 4, 5]}
    assert Inventory(ROOT, counts, ["ant", "honey bee", "c" * 50]).lines == [
        "images of 3 classes in photos: 1,207 train, 12 val",
        "                                            train  val",
        "  ant                                       1,200    3",
        "  honey bee                                     7    4",
        "  ccccccccccccccccccccccccccccccccccccc...      0    5",
    ]


def test_of_many_classes_the_least_and_the_most_images_are_said():
    counts = {"train": [*range(1, 22)], "test": [1] * 21}
    assert Inventory(ROOT, counts, [str(number) for number in range(21)]).lines == [
        "images of 21 classes in photos: 231 train, 21 test",
        "  of each class 1 to 21 train, 1 to 1 test",
    ]


def test_what_is_left_out_is_counted_with_the_first_names():
    left_out = {"hidden": [ROOT / f".{number}" for number in range(5)], ".txt: no image": [Path("/other/a.txt")]}
    assert Inventory(ROOT, {"files": [3]}, left_out=left_out, notes={"turned": [ROOT / "b.png"]}).lines == [
        "images of photos: 3 files",
        "left out: 6",
        "  1 .txt: no image (/other/a.txt)",
        "  5 hidden (.0, .1, .2 and 2 more)",
        "turned: 1 (b.png)",
    ]


def test_names_that_a_terminal_cannot_show_are_escaped():
    inventory = Inventory(Path("a\x1b[2J"), {"train": [1]}, ["cat\n"], {"hidden": [Path("\udcff.png")]})
    text = str(inventory)
    assert text.encode().isascii()
    assert "\\x1b[2J" in text
    assert "cat\\n" in text
    assert "\\udcff.png" in text


@pytest.fixture
def photos(write_image, tmp_path):
    """Two classes, and beside their images what people have in folders."""
    for name in ("ant", "bee"):
        for number in range(6):
            write_image(f"photos/{name}/{number}.png")
    root = tmp_path / "photos"
    (root / "ant/.DS_Store").touch()
    (root / "ant/notes.txt").touch()
    (root / "ant/broken.png").write_text("no image")
    (root / "empty").mkdir()
    write_image("photos/stray.png")
    (root / "bee/link.png").symlink_to("0.png")
    frames = [Image.new("L", (11, 7), grey) for grey in (9, 99)]
    frames[0].save(root / "bee/moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(np.full((7, 11), 4000, dtype=np.uint16)).save(root / "bee/camera.tif")
    return root


@pytest.mark.parametrize("memory_limit", [1.0, 1e-9])
def test_the_inventory_is_told_once_and_kept_by_the_data_module(photos, capsys, memory_limit):
    for _ in range(2):  # the second time, the decoder's findings come from the cache
        data = ImageFolder(str(photos), skip_damaged=True, num_workers=0, memory_limit=memory_limit, image_size=(7, 11))
        data.setup("fit")
        data.setup("test")
        assert data.inventory.lines == [
            f"images of 2 classes in {photos}: 10 train, 2 val, 3 test",
            "       train  val  test",
            "  ant      4    1     1",
            "  bee      6    1     2",
            "left out: 5",
            "  1 .txt: no image (ant/notes.txt)",
            "  1 damaged (ant/broken.png)",
            "  1 folder without images (empty)",
            "  1 hidden (ant/.DS_Store)",
            "  1 in no class folder (stray.png)",
            f"{NEARLY_BLACK}: 1 (bee/camera.tif)",
            f"{FIRST_FRAME}: 1 (bee/moving.gif)",
            "identical images under several names, and the split may part them: 1 (bee/0.png = bee/link.png)",
            "  --data.duplicates drop leaves copies out",
        ]
        assert capsys.readouterr().out.count(str(data.inventory)) == 1


def test_images_in_colour_among_grey_ones_are_named(write_image, tmp_path):
    for number in range(40):
        write_image(f"scans/{'ab'[number % 2]}/{number:02}.png", mode="RGB" if number == 7 else "L")
    data = ImageFolder(str(tmp_path / "scans"), num_workers=0)
    data.setup("fit")
    line = "in colour, and read in grey as nearly all are, of 40 that were looked at: 1 (b/07.png)"
    assert data.inventory.lines[-1] == line


def test_copies_that_are_dropped_are_counted_as_left_out(photos):
    data = ImageFolder(str(photos), skip_damaged=True, num_workers=0, image_size=(7, 11), duplicates="drop")
    data.setup("fit")
    assert "  1 copies of other images, or of two classes (bee/link.png)" in data.inventory.lines
    assert data.inventory.lines[-1] == "identical images under several names: 1 (bee/0.png = bee/link.png)"


def test_folders_beside_the_splits_are_left_out(photos, tmp_path):
    root = tmp_path / "sets"
    shutil.move(photos, root / "train")
    (root / "more").mkdir()
    data = ImageFolder(str(root), skip_damaged=True, num_workers=0, image_size=(7, 11))
    data.setup("fit")
    assert "  1 beside train, val and test (more)" in data.inventory.lines


def test_a_class_of_formats_that_are_not_read_is_an_error_with_what_they_need(write_image, tmp_path):
    for name in ("ant/a.png", "bee/b.png", "cow/c.png"):
        write_image(name)
    (tmp_path / "bee/b.png").rename(tmp_path / "bee/b.cr2")
    (tmp_path / "bee/notes.txt").touch()
    message = rf"^no image in {tmp_path}/bee is read \(.cr2: raw data of a camera: export it as JPEG or TIFF\): convert"
    with pytest.raises(ValueError, match=message):
        ImageFolder(str(tmp_path))


def test_images_of_too_many_pixels_are_damaged_ones(photos, write_image):
    write_image("photos/ant/large.png", size=(8, 11))
    data = ImageFolder(str(photos), skip_damaged=True, num_workers=0, image_size=(7, 11), max_pixels=77)
    data.setup("fit")
    assert "  2 damaged (ant/broken.png, ant/large.png)" in data.inventory.lines
    with pytest.raises(ValueError, match=r"^max_pixels \(0\) must be a positive whole number"):
        ImageFolder(str(photos), max_pixels=0)
