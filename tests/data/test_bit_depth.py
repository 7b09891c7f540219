"""Pixels of 16 or 32 bits and of floats."""

import zlib

import numpy as np
import pytest
from PIL import Image

from vit.data.image_files import NEARLY_BLACK, decode, decode_and_note

RAMP = np.arange(77, dtype=np.float32).reshape(7, 11) / 76
GREYS = np.random.default_rng(0).integers(256, size=(7, 11))


def written(path, values, **options):
    Image.fromarray(values).save(path, **options)
    return path


@pytest.mark.parametrize(
    "values", [(GREYS * 257).astype(dtype) for dtype in ("<u2", ">u2", "<i4")], ids=["little", "big", "32 bits"]
)
@pytest.mark.parametrize("in_channels", [1, 3])
def test_integers_up_to_65535_are_divided_by_257(tmp_path, values, in_channels):
    image, notes = decode_and_note(written(tmp_path / "deep.tif", values), None, in_channels)
    assert image.tolist() == [GREYS.tolist()] * in_channels
    assert notes == []


def test_floats_from_0_to_1_are_multiplied_by_255(tmp_path):
    image, notes = decode_and_note(written(tmp_path / "float.tif", RAMP), None, 1)
    assert image[0].tolist() == (255 * RAMP).round().tolist()
    assert notes == []


def with_tag(path, tag, value):
    """Change a number in the header of a little-endian TIFF."""
    content = bytearray(path.read_bytes())
    first = int.from_bytes(content[4:8], "little") + 2
    entries = range(first, first + 12 * int.from_bytes(content[first - 2 : first], "little"), 12)
    (place,) = [place for place in entries if int.from_bytes(content[place : place + 2], "little") == tag]
    content[place + 8 : place + 10] = value.to_bytes(2, "little")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("kind", ["uint8", "<u2", "float32"])
def test_a_tiff_whose_zero_is_white_is_inverted_at_any_depth(tmp_path, kind, compression):
    levels = {"uint8": GREYS, "<u2": GREYS * 257, "float32": GREYS / 255}[kind].astype(kind)
    path = with_tag(written(tmp_path / "scan.tif", levels, compression=compression), 262, 0)
    assert decode(path, None, 1)[0].tolist() == (255 - GREYS).tolist()


def test_signed_bytes_are_read_from_0_on(tmp_path):
    for most, least in ((127, 0), (127, -1)):
        values = np.full((7, 11), most, dtype=np.int8)
        values[0, 0] = least
        path = written(tmp_path / "signed.tif", values.view(np.uint8), tiffinfo={339: 1})
        with_tag(path, 339, 2)
        if least < 0:
            with pytest.raises(ValueError, match="integers from -1 to 127, and from 0 to 255 is read: rescale them"):
                decode(path, None, 1)
        else:
            assert decode(path, None, 1)[0].tolist() == values.tolist()


@pytest.mark.parametrize("beyond", [-0.001, 1.001])
def test_floats_that_round_into_the_range_are_in_it(tmp_path, beyond):
    values = np.where(RAMP == 0, np.float32(beyond), RAMP)
    assert decode(written(tmp_path / "float.tif", values), None, 1)[0, 0, 0] == (0 if beyond < 0 else 255)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (200 * RAMP, "floats from 0 to 200, and from 0 to 1 is read: divide them by 255"),
        (60_000 * RAMP, "floats from 0 to 60000, and from 0 to 1 is read: divide them by 65535"),
        (1e9 * RAMP, "floats from 0 to 1e+09, and from 0 to 1 is read: rescale them"),
        (2 * RAMP - 1, "floats from -1 to 1, and from 0 to 1 is read: rescale them"),
        (np.where(RAMP == 0, np.float32("nan"), RAMP), "it has pixels that are not finite (NaN or infinite)"),
        (np.where(RAMP == 0, np.float32("inf"), RAMP), "it has pixels that are not finite (NaN or infinite)"),
        ((100_000 * RAMP).astype("<i4"), "integers from 0 to 100000, and from 0 to 65535 is read: rescale them"),
        ((100 - 100_000 * RAMP).astype("<i4"), "integers from -99900 to 100, and from 0 to 65535 is read: rescale"),
    ],
)
def test_other_values_are_refused_with_their_range_and_the_remedy(tmp_path, values, message):
    path = written(tmp_path / "deep.tif", values.astype(values.dtype.newbyteorder("<")))
    with pytest.raises(ValueError, match=f"^cannot read image {path}: ") as error:
        decode(path, None, 1)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("largest", "is_noted"),
    [(4095, True), (4096, False)],
)
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_integers_that_stay_below_4096_are_noted_as_nearly_black(tmp_path, suffix, largest, is_noted):
    path = written(tmp_path / f"camera.{suffix}", (RAMP * largest).astype(np.uint16))
    image, notes = decode_and_note(path, (5, 5), 1)
    assert image.max() <= 16
    assert notes == ([NEARLY_BLACK] if is_noted else [])


@pytest.mark.parametrize(("largest", "is_noted"), [(0.0624, True), (0.0626, False)])
def test_floats_that_stay_below_a_sixteenth_are_noted_as_nearly_black(tmp_path, largest, is_noted):
    assert (decode_and_note(written(tmp_path / "float.tif", largest * RAMP), None, 1)[1] != []) == is_noted


@pytest.mark.parametrize(("largest", "is_noted"), [(4095, True), (4096, False)])
def test_colours_of_16_bits_are_noted_likewise(tmp_path, largest, is_noted):
    rows = [b"\0" + (np.ones((11, 3)) * largest).astype(">u2").tobytes()] * 7
    path = tmp_path / "colour.png"
    path.write_bytes(png(11, 7, b"".join(rows)))
    image, notes = decode_and_note(path, None, 3)
    assert image.unique().tolist() == [largest // 256]
    assert notes == ([NEARLY_BLACK] if is_noted else [])


def png(width, height, rows, kind=2):
    """A PNG with colours of 16 bits, which Pillow does not write."""

    def chunk(name, content):
        return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, kind, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_a_dark_image_of_8_bits_is_left_alone(tmp_path):
    image, notes = decode_and_note(written(tmp_path / "dark.png", np.ones((7, 11), dtype=np.uint8)), None, 1)
    assert image.unique().tolist() == [1]
    assert notes == []


@pytest.mark.parametrize("in_channels", [1, 3])
def test_transparency_is_left_out(tmp_path, in_channels):
    pixels = np.stack([GREYS, GREYS[::-1]], axis=2).astype(np.uint8)
    assert decode(written(tmp_path / "veil.png", pixels), None, in_channels).tolist() == [GREYS.tolist()] * in_channels


@pytest.mark.parametrize("largest", [4095, 4096])
def test_transparency_does_not_hide_that_colours_of_16_bits_are_nearly_black(tmp_path, largest):
    pixels = np.ones((11, 4)) * largest
    pixels[:, 3] = 65535
    path = tmp_path / "veiled.png"
    path.write_bytes(png(11, 7, b"".join([b"\0" + pixels.astype(">u2").tobytes()] * 7), kind=6))
    assert decode_and_note(path, None, 3)[1] == ([NEARLY_BLACK] if largest == 4095 else [])
