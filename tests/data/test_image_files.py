"""Search and decoding of image files."""

import struct
import zlib

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import ExifTags, Image, ImageOps, TiffTags
from sklearn.datasets import load_sample_image

from vit.data.image_files import collate_readable, decode, raise_unreadable, seen_box, upright_size

# Rows and columns of random colours, not square.
COLOURS = np.random.default_rng(0).integers(256, size=(7, 11, 3), dtype=np.uint8)
GREYS = COLOURS[:, :, 0]
LOSSLESS = [("png", {}), ("bmp", {}), ("tiff", {}), ("ppm", {}), ("webp", {"lossless": True})]
# The transform to upright for each value of the EXIF orientation (EXIF 2.3, table 6).
UPRIGHT = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


def channels_first(pixels: np.ndarray) -> list:
    return rearrange(pixels, "h w c -> c h w").tolist()


@pytest.mark.parametrize(("suffix", "options"), LOSSLESS)
def test_a_lossless_image_is_decoded_exactly(tmp_path, suffix, options):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(COLOURS).save(path, **options)
    image = decode(path, None, in_channels=3)
    assert image.dtype == torch.uint8
    assert image.tolist() == channels_first(COLOURS)


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_a_lossy_image_is_decoded_nearly(tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.new("RGB", (11, 7), (211, 101, 53)).save(path)
    image = decode(path, None, in_channels=3)
    assert image.shape == (3, 7, 11)
    assert (image - torch.tensor([211.0, 101.0, 53.0])[:, None, None]).abs().max() <= 3


@pytest.mark.parametrize("in_channels", [1, 3])
def test_a_grey_image_has_one_channel_or_three_equal_ones(tmp_path, in_channels):
    Image.fromarray(GREYS).save(tmp_path / "grey.png")
    assert decode(tmp_path / "grey.png", None, in_channels).tolist() == [GREYS.tolist()] * in_channels


def test_a_colour_image_decoded_as_grey_is_its_luminance(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "colour.png")
    luminance = COLOURS @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decode(tmp_path / "colour.png", None, in_channels=1)[0].numpy() - luminance).max() < 1


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1", "CMYK"])
@pytest.mark.parametrize("in_channels", [1, 3])
def test_every_colour_mode_is_decoded(tmp_path, mode, in_channels):
    path = tmp_path / "image.tiff"
    Image.new("L", (11, 7), 255).convert("RGB").convert(mode).save(path)
    assert decode(path, None, in_channels).tolist() == [[[255] * 11] * 7] * in_channels


def test_a_palette_is_looked_up(tmp_path):
    Image.fromarray(COLOURS // 64 * 64).quantize(256).save(tmp_path / "palette.png")
    assert decode(tmp_path / "palette.png", None, in_channels=3).tolist() == channels_first(COLOURS // 64 * 64)


def test_a_palette_with_transparency_is_decoded_without_a_warning(tmp_path):
    image = Image.fromarray(COLOURS // 64 * 64).quantize(256)
    image.save(tmp_path / "palette.png", transparency=bytes([0, 127, 255]))
    assert decode(tmp_path / "palette.png", None, in_channels=3).tolist() == channels_first(COLOURS // 64 * 64)


def test_opaque_pixels_keep_their_colour(tmp_path):
    Image.fromarray(np.dstack([COLOURS, np.full_like(GREYS, 255)])).save(tmp_path / "opaque.png")
    assert decode(tmp_path / "opaque.png", None, in_channels=3).tolist() == channels_first(COLOURS)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("in_channels", [1, 3])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix, in_channels):
    path = tmp_path / f"deep.{suffix}"
    Image.fromarray(GREYS.astype(np.uint16) * 257).save(path)
    assert decode(path, None, in_channels).tolist() == [GREYS.tolist()] * in_channels


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_images_are_rotated_by_their_exif_orientation(tmp_path, suffix, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    for name, pixels, channels in (("photo", COLOURS, 3), ("grey", GREYS[:, :, None], 1)):
        path = tmp_path / f"{name}.{suffix}"
        Image.fromarray(pixels.squeeze()).save(path, exif=exif)
        upright = UPRIGHT[orientation](pixels)
        assert decode(path, None, channels).tolist() == channels_first(upright)
        assert decode(path, upright.shape[:2], channels).tolist() == channels_first(upright)


def test_a_rotated_photo_with_a_malformed_exif_entry_is_decoded(tmp_path):
    maker_as_number = struct.pack("<HHII", ExifTags.Base.Make, TiffTags.DOUBLE, 1, 0)
    orientation = struct.pack("<HHII", ExifTags.Base.Orientation, TiffTags.SHORT, 1, 6)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + maker_as_number + orientation + bytes(4)
    Image.fromarray(COLOURS).save(tmp_path / "photo.png", exif=exif)
    assert decode(tmp_path / "photo.png", None, in_channels=3).tolist() == channels_first(UPRIGHT[6](COLOURS))


def test_without_a_size_images_keep_theirs(write_image):
    assert decode(write_image("image.png", (5, 13)), None, in_channels=3).shape == (3, 5, 13)


@pytest.mark.parametrize(("size", "in_channels"), [((5, 13), 1), ((13, 5), 3), ((17, 17), 1), ((2, 3), 3)])
def test_images_of_any_size_are_scaled_to_the_given_one(write_image, size, in_channels):
    assert decode(write_image("image.png", size), (7, 11), in_channels).shape == (in_channels, 7, 11)


@pytest.mark.parametrize(("crop", "size"), [(np.s_[:, 2:9], (7, 7)), (np.s_[1:6, :], (5, 11)), (np.s_[:, 4:7], (7, 3))])
def test_images_of_another_aspect_ratio_are_cropped_at_the_centre(tmp_path, crop, size):
    Image.fromarray(COLOURS).save(tmp_path / "image.png")
    assert decode(tmp_path / "image.png", size, in_channels=3).tolist() == channels_first(COLOURS[crop])


@pytest.mark.parametrize(
    ("size", "image_size", "centre", "box"),
    [
        ((640, 480), (32, 32), None, (80, 0, 560, 480)),
        ((480, 640), (32, 32), None, (0, 80, 480, 560)),
        ((31, 17), (5, 10), None, (0, 0.75, 31, 16.25)),
        ((97, 101), (97, 101), None, (0, 3.92, 97, 97.08)),
        ((101, 97), (97, 101), None, (0, 0, 101, 97)),
        ((640, 480), (256, 256), (224, 224), (110, 30, 530, 450)),
        ((70, 70), (7, 7), (4, 4), (20, 20, 60, 60)),  # of three rows, two are cut off at the top
    ],
)
def test_the_part_that_is_seen_is_given_in_pixels_of_the_image(size, image_size, centre, box):
    assert seen_box(size, image_size, centre) == pytest.approx(box, abs=0.005)


@pytest.mark.parametrize("orientation", [*range(1, 9), 99])
def test_the_upright_size_is_that_of_the_decoded_image(tmp_path, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    for suffix, left in (("png", orientation if orientation < 9 else 1), ("tif", 1)):  # Pillow turns a TIFF itself
        path = tmp_path / f"image.{suffix}"
        Image.fromarray(COLOURS).save(path, exif=exif)
        _, rows, columns = decode(path, None, in_channels=3).shape
        assert upright_size(path) == (columns, rows, left)


def test_a_png_whose_orientation_stands_behind_its_pixels_is_turned_by_it(tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    block = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    Image.fromarray(COLOURS).save(path := tmp_path / "image.png")
    content, end = path.read_bytes(), -12  # of the last chunk, which is empty
    size, check = ((len(block) - 4).to_bytes(4, "big"), zlib.crc32(block).to_bytes(4, "big"))
    path.write_bytes(content[:end] + size + block + check + content[end:])
    _, rows, columns = decode(path, None, in_channels=3).shape
    assert (rows, columns) == COLOURS.shape[1::-1]
    assert upright_size(path) == (columns, rows, 6)


def test_large_images_are_scaled_before_they_are_cropped(tmp_path):
    thirds = np.repeat(np.array([50, 100, 150], dtype=np.uint8), 31)
    Image.fromarray(np.tile(thirds, (31, 1))).save(tmp_path / "thirds.png")
    whole = decode(tmp_path / "thirds.png", (5, 15), in_channels=1)
    assert whole[0, :, [0, 7, 14]].tolist() == [[50, 100, 150]] * 5
    centre = decode(tmp_path / "thirds.png", (5, 5), in_channels=1)
    assert (centre.int() - 100).abs().max() <= 5


@pytest.fixture(scope="module")
def photograph(tmp_path_factory):
    """Write a part of a photograph with these rows and columns, and return its file."""
    picture = Image.fromarray(load_sample_image("china.jpg"))

    def write(rows, columns, **options):
        path = tmp_path_factory.mktemp("photo") / "photo.jpg"
        picture.resize((columns, rows)).save(path, **options)
        return path

    return write


def in_full(path, image_size, in_channels):
    """The image decoded at its full size, then scaled: (H, W, C), or (H, W) if grey."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("L" if in_channels == 1 else "RGB")
    return torch.from_numpy(np.array(ImageOps.fit(image, image_size[::-1], Image.Resampling.BICUBIC)))


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize(
    ("size", "image_size"), [((101, 97), (64, 64)), ((61, 97), (31, 29)), ((128, 200), (64, 64)), ((7, 5), (11, 13))]
)
def test_a_photo_up_to_twice_as_large_is_decoded_in_full(photograph, size, image_size, in_channels):
    path = photograph(*size, quality=90)
    image = rearrange(decode(path, image_size, in_channels), "c h w -> h w c").squeeze(2)
    assert image.tolist() == in_full(path, image_size, in_channels).tolist()


@pytest.mark.parametrize(
    ("size", "scale"), [((130, 130), 2), ((259, 300), 2), ((260, 300), 4), ((640, 520), 8), ((1283, 855), 8)]
)
def test_a_larger_photo_is_decoded_at_a_reduced_scale(photograph, monkeypatch, size, scale):
    sizes = []

    def watched(image, *args, **kwargs):
        sizes.append(image.size)
        return resize(image, *args, **kwargs)

    resize, path = Image.Image.resize, photograph(*size)
    monkeypatch.setattr(Image.Image, "resize", watched)
    assert decode(path, (64, 64), 3).shape == (3, 64, 64)
    assert sizes == [(-(-size[1] // scale), -(-size[0] // scale))]


def test_a_reduced_scale_changes_pixels_by_a_grey_level_on_average(photograph):
    # Sizes as of photographs for inputs of 128 pixels: at the limits of the scales, between them, and no multiples.
    differences = []
    for size in ((258, 301), (427, 640), (600, 515), (854, 1281), (1031, 1033), (1281, 1923)):
        path = photograph(*size, quality=90)
        image = rearrange(decode(path, (128, 128), 3), "c h w -> h w c").int()
        differences.append(float((image - in_full(path, (128, 128), 3).int()).abs().float().mean()))
    assert max(differences) < 3
    assert np.mean(differences) < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_reduced_photo_is_upright(photograph, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = photograph(643, 427, exif=exif)
    image = rearrange(decode(path, (64, 96), 3), "c h w -> h w c").int()
    assert (image - in_full(path, (64, 96), 3).int()).abs().float().mean() < 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[:1500], "image file is truncated.*"),
        (lambda whole: b"", "it is no image"),
        (lambda whole: b"a list of photos\n", "it is no image"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(write_image, content, message):
    path = write_image("photo.jpg", (47, 43))
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content(path.read_bytes()))
    with pytest.raises(ValueError, match=f"^cannot read image {path}: {message}$"):
        decode(path, (7, 11), in_channels=3)


def test_an_item_is_an_image_its_label_and_its_index_and_a_blank_for_minus_one(image_files):
    assert len(image_files) == 13
    image, label, index, notes = image_files[5]
    assert image.tolist() == decode(image_files.paths[5], (7, 11), in_channels=3).tolist()
    assert (label, index, notes) == (2, 5, [])
    image, label, index, notes = image_files[-1]
    assert image.tolist() == torch.zeros(3, 7, 11).tolist()
    assert image.dtype == torch.uint8
    assert (label, index, notes) == (-1, -1, [])


def test_of_a_scaled_image_only_the_centre_may_be_kept(image_files):
    image_files.centre = (3, 5)
    image, label, index, _ = image_files[5]
    assert image.tolist() == decode(image_files.paths[5], (7, 11), in_channels=3)[:, 2:5, 3:8].tolist()
    assert (label, index) == (2, 5)
    assert image_files[-1][0].shape == (3, 3, 5)


def test_some_files_may_be_chosen_or_left_out(image_files):
    paths = image_files.paths
    chosen, others = image_files.subset(torch.tensor([7, 2, 3])), image_files.without({*range(13)} - {2, 3, 7})
    assert (chosen.paths, chosen.labels) == ([paths[7], paths[2], paths[3]], [1, 2, 0])
    assert (others.paths, others.labels) == ([paths[2], paths[3], paths[7]], [2, 0, 1])
    assert chosen[0][0].tolist() == image_files[7][0].tolist()


def test_a_batch_holds_the_readable_images_and_messages_about_the_others(image_files):
    image_files.paths[1].write_text("no image")
    batch = collate_readable([image_files[number] for number in (0, 1, 2)])
    assert batch.images.tolist() == [image_files[0][0].tolist(), image_files[2][0].tolist()]
    assert batch.labels.tolist() == [0, 2]
    assert batch.indices == [0, 2]
    assert batch.unreadable == {1: f"cannot read image {image_files.paths[1]}: it is no image"}


def test_a_batch_may_be_without_readable_images(image_files):
    image_files.paths[1].write_text("no image")
    batch = collate_readable([image_files[1]])
    assert len(batch.images) == len(batch.labels) == len(batch.indices) == 0
    assert len(batch.unreadable) == 1


def test_an_unreadable_file_is_named_with_the_remedy(image_files):
    image_files.paths[1].write_text("no image")
    message = f"cannot read image {image_files.paths[1]}: it is no image: replace or delete the file, or leave it out"
    with pytest.raises(ValueError, match=f"^{message} by --data.skip_damaged true$"):
        raise_unreadable(collate_readable([image_files[number] for number in range(5)]).unreadable)


@pytest.mark.parametrize(("damaged", "counted"), [(2, ""), (10, ""), (11, "; and 1 more"), (13, "; and 3 more")])
def test_ten_unreadable_files_are_named_and_the_others_counted(image_files, damaged, counted):
    for path in image_files.paths[:damaged]:
        path.write_text("no image")
    named = "; ".join(f"cannot read image {path}: it is no image" for path in image_files.paths[: min(damaged, 10)])
    with pytest.raises(ValueError, match="replace or delete the files, or leave them out") as error:
        raise_unreadable(collate_readable([image_files[number] for number in range(13)]).unreadable)
    assert str(error.value).startswith(f"{named}{counted}: replace")


def test_a_readable_batch_raises_nothing(image_files):
    raise_unreadable(collate_readable([image_files[0], image_files[-1]]).unreadable)
