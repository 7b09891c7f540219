"""What is chosen from the headers of image files."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from vit.data import survey as module
from vit.data.survey import Survey, survey


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([(32, 32)] * 3, (32, 32)),
        ([(64, 40)] * 3, (64, 40)),
        ([(7, 11)], (7, 11)),
        ([(65, 40)] * 3, (32, 32)),
        ([(96, 96)] * 3, (64, 64)),
        ([(1200, 900)], (64, 64)),
        *[([(1200, side)], (side, side)) for side in (8, 16, 24, 32, 48, 64)],
        ([(300, 500), (1500, 1400), (32, 32)], (64, 64)),
        ([(63, 100), (100, 200), (20, 20)], (48, 48)),
        ([(32, 32), (32, 33)], (32, 32)),
        ([(31, 90), (40, 25)], (24, 24)),
        ([(5, 9), (13, 7), (7, 7)], (7, 7)),
    ],
)
def test_equal_modest_sizes_are_kept_and_others_become_a_square_below_the_median(sizes, chosen):
    assert Survey(sizes, in_channels=3).image_size == chosen


def test_the_sizes_are_said_in_words():
    found = Survey([(1200, 301), (400, 1499), (612, 700)], in_channels=3)
    assert str(found) == "3 images have shorter sides of 301 to 612 pixels, median 400"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_sizes_are_those_of_upright_images(write_image, orientation, suffix):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = write_image(f"photo.{suffix}", size=(5, 13), exif=exif)
    assert survey([path]).sizes == [(13, 5) if orientation > 4 else (5, 13)]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_no_image_is_decoded(write_image, monkeypatch, suffix):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    assert survey([write_image(f"photo.{suffix}", size=(5, 13))]).sizes == [(5, 13)]


@pytest.mark.parametrize(("grey", "channels"), [(0, 3), (18, 3), (19, 1), (20, 1)])
def test_images_are_grey_if_nearly_all_are(write_image, grey, channels):
    paths = [write_image(f"{number}.png", mode="L" if number < grey else "RGB") for number in range(20)]
    assert survey(paths).in_channels == channels


@pytest.mark.parametrize(("grey", "coloured"), [(18, []), (19, ["19.png"]), (20, [])])
def test_the_few_images_in_colour_among_grey_ones_are_known(write_image, grey, coloured):
    paths = [write_image(f"{number}.png", mode="L" if number < grey else "RGB") for number in range(20)]
    assert [path.name for path in survey(paths).coloured] == coloured


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("I;16", 1), ("P", 3)])
def test_every_grey_mode_counts_as_grey_and_a_palette_as_colour(tmp_path, mode, channels):
    image = Image.fromarray(np.zeros((7, 11), dtype=np.uint16)) if mode == "I;16" else Image.new(mode, (11, 7))
    image.save(tmp_path / "image.png")
    assert survey([tmp_path / "image.png"]).in_channels == channels


def test_sixteen_bits_of_either_byte_order_are_grey(tmp_path):
    for order in "<>":
        Image.fromarray(np.zeros((7, 11), dtype=f"{order}u2")).save(tmp_path / "image.tif")
        assert survey([tmp_path / "image.tif"]).in_channels == 1


def test_of_many_files_an_evenly_spaced_sample_is_read(write_image, monkeypatch):
    paths = [write_image(f"{number:02}.png", size=(number + 1, 5)) for number in range(13)]
    monkeypatch.setattr(module, "MOST_HEADERS", 5)
    assert survey(paths).sizes == [(1, 5), (4, 5), (7, 5), (10, 5), (13, 5)]


def test_damaged_files_are_left_to_the_decoder_unless_all_are_damaged(write_image, tmp_path):
    path = tmp_path / "text.png"
    path.write_text("no image")
    assert survey([path, write_image("whole.png", size=(5, 13))]).sizes == [(5, 13)]
    with pytest.raises(ValueError, match=f"^cannot read any of the 2 image files, such as {path}: are they images"):
        survey([path, path])
