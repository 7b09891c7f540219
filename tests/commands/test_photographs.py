"""Image files of a command line, read for a model."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import vit
from vit.commands.photographs import (
    Photograph,
    distinct_names,
    find_images,
    locate,
    read_images,
    read_shown,
    without_damaged,
    write_cells,
)
from vit.explain.photograph_overlay import cell_boxes


@pytest.fixture
def model():
    model = vit.VisionTransformer(image_size=(7, 11), patch_size=1, embed_dim=4, depth=1, num_heads=1)
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 0.125]}
    return model


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{level}.png" for level in (0, 51, 255)]
    for path in paths:
        Image.new("RGB", (23, 17), (int(path.stem),) * 3).save(path)
    return paths


def test_images_have_the_size_and_the_normalisation_of_the_model(model, files):
    pixels, images = read_images(files, model)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == images.shape == (3, 3, 7, 11)
    assert pixels[:, 0, 3, 5].tolist() == [0, 51, 255]
    assert_close(images[:, :, 3, 5], torch.tensor([[-0.2, -0.8, -2.4], [0.2, 0.0, -0.8], [1.8, 3.2, 5.6]]))


def test_images_are_cropped_as_in_the_tests_of_the_model(model, tmp_path):
    model.pretrained_cfg["crop_ratio"] = 0.5
    image = Image.new("RGB", (22, 14), (255, 0, 0))
    image.paste((0, 0, 255), (5, 3, 17, 11))  # more than the centre
    image.save(tmp_path / "framed.png")
    pixels, _ = read_images([tmp_path / "framed.png"], model)
    assert pixels.shape == (1, 3, 7, 11)
    assert pixels[0, 0].max() == 0


def test_all_damaged_files_are_named_at_once(model, files):
    for path in files[:2]:
        path.write_text("no image")
    message = "; ".join(f"cannot read image {path}: it is no image" for path in files[:2])
    with pytest.raises(ValueError, match=f"^{message}: delete them, or leave them out$"):
        read_images(files, model)


def test_images_that_are_not_read_as_one_may_think_are_named(files, capsys):
    frames = [Image.new("RGB", (23, 17), (level, 0, 0)) for level in (0, 99)]
    frames[0].save(files[1].with_suffix(".gif"), save_all=True, append_images=frames[1:])
    files[1] = files[1].with_suffix(".gif")
    assert without_damaged(files) == files
    assert capsys.readouterr().err == f"{files[1]}: several frames or pages, of which the first is read\n"


def test_a_folder_is_told_of_and_a_file_is_not(files, tmp_path, capsys):
    (tmp_path / "notes.txt").touch()
    assert find_images([files[2], tmp_path]) == [files[2], files[0], files[1]]
    lines = [f"images of {tmp_path}: 3 files", "left out: 1", "  1 .txt: no image (notes.txt)"]
    assert capsys.readouterr().out.splitlines() == lines


def test_damaged_files_are_left_out_and_named(files, capsys):
    files[1].write_bytes(files[1].read_bytes()[:40])
    assert without_damaged(files) == [files[0], files[2]]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: cannot read image {files[1]}: ")
    with pytest.raises(ValueError, match=r"^cannot read image .*: give images$"):
        without_damaged([files[1]])
    with pytest.raises(ValueError, match=r"^cannot read image [^;]*; nor 1 more: give images$"):
        without_damaged([files[1], files[1]])


@pytest.mark.parametrize("crop_ratio", [1.0, 0.6])
@pytest.mark.parametrize("size", [(101, 67), (67, 101), (199, 31), (440, 280)])
def test_the_cells_of_a_photograph_lie_where_the_model_saw_its_patches(model, tmp_path, size, crop_ratio):
    model.pretrained_cfg["crop_ratio"] = crop_ratio
    width, height = size
    ramps = torch.zeros(height, width, 3)
    ramps[..., 0] = (torch.arange(width) + 0.5) / width  # red tells how far to the right a pixel is
    ramps[..., 1] = (torch.arange(height)[:, None] + 0.5) / height  # and green how far down
    Image.fromarray((255 * ramps).round().byte().numpy()).save(tmp_path / "photo.png")
    photograph = locate(tmp_path / "photo.png", model)
    assert (photograph.width, photograph.height, photograph.orientation) == (*size, 1)
    pixels, _ = read_images([photograph.path], model)
    left, top, right, bottom = cell_boxes(photograph.seen, (7, 11)).unbind(dim=-1)
    assert_close(pixels[0, 0].double(), 255 * (left + right) / 2 / width, atol=1.6, rtol=0)
    assert_close(pixels[0, 1].double(), 255 * (top + bottom) / 2 / height, atol=1.6, rtol=0)


@pytest.mark.parametrize(
    ("size", "shown"),
    [((500, 700), (500, 700)), ((3200, 800), (1600, 400)), ((40, 30), (520, 390)), ((2, 700), (4, 1400))],
)
def test_a_photograph_is_shown_at_its_own_pixels_unless_it_is_large_or_small(model, tmp_path, size, shown):
    Image.new("RGB", size, (90, 90, 90)).save(tmp_path / "photo.png")
    pixels = read_shown(locate(tmp_path / "photo.png", model))
    assert pixels.shape == (1, *shown[::-1])
    assert pixels.unique().tolist() == [90]


def test_a_very_long_photograph_is_shown_whole(model, tmp_path):
    picture = Image.new("L", (8000, 2))
    picture.paste(255, (0, 0, 4000, 2))
    picture.save(tmp_path / "photo.png")
    shown = read_shown(locate(tmp_path / "photo.png", model))
    assert shown.shape == (1, 1, 1600)
    assert shown[0, 0, [0, 790, 810, 1599]].tolist() == [255, 255, 0, 0]


def test_the_table_names_each_cell_of_each_map_with_its_pixels(tmp_path):
    photographs = [Photograph(Path("=1.png"), 40, 20, 6, (10.0, 0.0, 30.0, 20.0))]
    maps = {"rollout": [torch.tensor([[[0.25, 1 / 3]]])], "occlusion": [torch.tensor([[[-1.0], [0.0]]])]}
    write_cells(tmp_path / "cells.csv", photographs, maps)
    assert (tmp_path / "cells.csv").read_text().splitlines() == [
        "file,width,height,exif_orientation,method,row,column,left,top,right,bottom,value",
        "'=1.png,40,20,6,rollout,0,0,10.00,0.00,20.00,20.00,0.25",
        "'=1.png,40,20,6,rollout,0,1,20.00,0.00,30.00,20.00,0.333333",
        "'=1.png,40,20,6,occlusion,0,0,10.00,0.00,30.00,10.00,-1",
        "'=1.png,40,20,6,occlusion,1,0,10.00,10.00,30.00,20.00,0",
    ]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["cat.jpg", "dog.jpg"], ["cat", "dog"]),
        (["cat.jpg", "cat.png", "dog.jpg"], ["cat.jpg", "cat.png", "dog"]),
        (["a/cat.jpg", "b/cat.jpg"], ["a_cat", "b_cat"]),
        (["a/cat.jpg", "b/cat.jpg", "b/cat.png"], ["a_cat", "b_cat", "cat.png"]),
        (["a/x/cat.jpg", "b/x/cat.jpg"], ["a_x_cat", "b_x_cat"]),
        (["a/Cat.jpg", "b/cat.jpg"], ["a_Cat", "b_cat"]),  # one file on some file systems
        (["a/b_c.jpg", "a_b/c.jpg", "x/c.jpg"], ["b_c", "a_b_c", "x_c"]),
        (["cat.jpg", "cat.jpg"], ["cat.jpg_1", "cat.jpg_2"]),
        (["\x1b[31mred.png", "\udcff.png"], ["\\x1b[31mred", "\\udcff"]),
    ],
)
def test_names_that_would_collide_keep_what_tells_them_apart(files, names):
    assert distinct_names([Path(file) for file in files]) == names
