"""Image files of a command line, read for a model."""

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import vit
from vit.commands.photographs import find_images, read_images, without_damaged


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
