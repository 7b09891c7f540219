"""Formats of image files: which are read, and why others are not."""

import importlib.machinery
import io
import os
import sys
import warnings
from types import ModuleType

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile, features

from vit.data.formats import FORMAT_OF, _tried, why_not_read
from vit.data.image_files import FIRST_FRAME, SUSPICIOUS, decode, decode_and_note
from vit.data.search import search
from vit.data.survey import survey

COLOURS = np.random.default_rng(0).integers(256, size=(7, 11, 3), dtype=np.uint8)
HEIC = b"\0\0\0\x18ftypheic"


@pytest.mark.parametrize(
    "suffix", sorted({*FORMAT_OF} - {".heic", ".heif", ".hif", ".pbm", ".pgm", ".jfif", ".jpe", ".pnm"})
)
def test_every_format_that_is_named_is_read(tmp_path, suffix):
    path = tmp_path / f"image{suffix}"
    Image.new("RGB", (16, 8), (200, 100, 50)).save(path)
    assert search(tmp_path).images == [path]
    assert np.abs(decode(path, None, 3).double().mean(dim=(1, 2)).numpy() - [200, 100, 50]).max() < 6
    assert survey([path]).sizes == [(8, 16)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.SVG", "a drawing: export it as PNG"),
        ("a.nef", "raw data of a camera: export it as JPEG or TIFF"),
        ("a.psd", "a project of an image editor: export it as PNG"),
        ("a.dcm", "a medical image: export it as 16-bit PNG or TIFF"),
        ("a.svs", "a microscope's file: export it as TIFF or PNG"),
        ("a.jxl", "a format that is not read: save it as PNG"),
        ("a.mov", "a film: export its frames as PNG"),
        ("a.csv", "no image"),
        ("png", "no image"),
    ],
)
def test_other_files_are_left_out_with_the_remedy(tmp_path, name, reason):
    assert why_not_read(tmp_path / name) == reason


def test_avif_is_left_out_where_pillow_does_not_read_it(tmp_path, monkeypatch, request):
    path = tmp_path / "image.avif"
    Image.fromarray(COLOURS).save(path)
    monkeypatch.setattr(features, "check", lambda feature: feature != "avif")
    request.addfinalizer(_tried.cache_clear)
    _tried.cache_clear()
    assert why_not_read(path) == "needs a Pillow that reads AVIF: pip install --upgrade pillow"
    with pytest.raises(ValueError, match="it is an AVIF image, which needs a Pillow that reads AVIF"):
        decode(path, None, 3)


@pytest.mark.parametrize(
    "start", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", b"\xc5\xd0\xd3\xc6" + bytes(28)]
)
def test_a_postscript_file_with_the_name_of_a_photo_never_reaches_ghostscript(tmp_path, monkeypatch, start):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **kwargs: pytest.fail("Ghostscript"))
    path = tmp_path / "photo.jpg"
    path.write_bytes(start + b"showpage\n")
    with pytest.raises(ValueError, match=f"{path}: it is a PostScript file, a drawing: export it as PNG$"):
        decode(path, None, 3)


@pytest.mark.parametrize(("name", "reason"), [("photo.psd", "a project of an image editor"), ("photo.png", "no image")])
def test_a_format_that_pillow_reads_and_the_package_does_not_is_refused_whatever_its_name(tmp_path, name, reason):
    with (tmp_path / name).open("wb") as file:
        Image.fromarray(COLOURS).save(file, "TGA")
    with pytest.raises(ValueError, match=f"it is {reason}"):
        decode(tmp_path / name, None, 3)


def test_the_format_is_that_of_the_content_and_not_of_the_name(tmp_path):
    with (tmp_path / "photo.jpg").open("wb") as file:
        Image.fromarray(COLOURS).save(file, "PNG")
    assert decode(tmp_path / "photo.jpg", None, 3).permute(1, 2, 0).tolist() == COLOURS.tolist()


def test_a_tiff_of_a_kind_that_pillow_does_not_read_is_named_as_one(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "image.tif")
    content = (tmp_path / "image.tif").read_bytes()
    bits = content.index(np.array([258, 3], dtype="<u2").tobytes())  # the tag of the bits of a sample
    at = int.from_bytes(content[bits + 8 : bits + 12], "little")
    (tmp_path / "image.tif").write_bytes(
        content[:at] + np.array([32, 32, 32], dtype="<u2").tobytes() + content[at + 6 :]
    )
    with pytest.raises(ValueError, match="it is a TIFF of a kind that Pillow does not read, such as colours as floats"):
        decode(tmp_path / "image.tif", None, 3)


@pytest.fixture
def pillow_heif(monkeypatch):
    """A module in place of pillow_heif, for files that are a PNG after their first twelve bytes."""

    class HeifFile(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self):
            self.fp.seek(len(HEIC))
            self.inner = Image.open(io.BytesIO(self.fp.read()))
            self._size, self._mode, self.tile = self.inner.size, self.inner.mode, []

        def load(self):
            self.im = self.inner.im if self.inner.load() else None

    stub = ModuleType("pillow_heif")
    stub.__spec__ = importlib.machinery.ModuleSpec("pillow_heif", None)
    stub.register_heif_opener = lambda: Image.register_open("HEIF", HeifFile, lambda prefix: prefix[4:8] == b"ftyp")
    monkeypatch.setitem(sys.modules, "pillow_heif", stub)
    yield
    Image.OPEN.pop("HEIF", None)


def write_heic(path):
    content = io.BytesIO()
    Image.fromarray(COLOURS).save(content, "PNG")
    path.write_bytes(HEIC + content.getvalue())


@pytest.mark.parametrize("name", ["photo.heic", "photo.HIF", "photo.jpg"])
def test_heic_is_read_with_its_package_whatever_the_name(tmp_path, pillow_heif, name):
    write_heic(tmp_path / name)
    assert search(tmp_path).images == [tmp_path / name]
    for _ in range(2):
        assert decode(tmp_path / name, None, 3).permute(1, 2, 0).tolist() == COLOURS.tolist()


def test_heic_without_its_package_is_left_out_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("vit.data.formats.find_spec", lambda name: None)
    write_heic(tmp_path / "photo.heic")
    (reason,) = search(tmp_path).left_out
    assert reason == ".heic: needs pillow-heif: pip install 'vit-attention[heic]'"
    with pytest.raises(
        ValueError, match=r"it is a HEIC image, which needs pillow-heif: pip install 'vit-attention\[heic"
    ):
        decode(tmp_path / "photo.heic", None, 3)


def test_the_limit_of_pixels_names_file_and_size(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(COLOURS).save(path)
    assert decode(path, None, 3, max_pixels=77).shape == (3, 7, 11)
    with pytest.raises(
        ValueError, match=rf"^cannot read image {path}: it has 11 x 7 pixels, more than max_pixels \(76\)"
    ):
        decode(path, None, 3, max_pixels=76)
    with pytest.raises(ValueError, match=r"cannot read any of the 1 image files.*more than max_pixels \(76\)"):
        survey([path], max_pixels=76)


def test_the_limit_takes_the_place_of_that_of_pillow_which_stays_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # a warning is an error here
    Image.fromarray(COLOURS).save(tmp_path / "photo.png")
    assert decode(tmp_path / "photo.png", None, 3).shape == (3, 7, 11)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_a_small_file_that_claims_to_be_huge_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "bomb.gif"
    Image.new("P", (2, 2)).save(path)
    content = bytearray(path.read_bytes())
    content[6:10] = b"\xff\xff\xff\xff"  # columns and rows of the screen
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it has 65,535 x 65,535 pixels, more than max_pixels"):
        decode(path, None, 3)


FRAMES = [Image.new("RGB", (11, 7), colour) for colour in ((200, 100, 50), (0, 0, 0), (255, 255, 255))]


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tif", "avif"])
def test_of_several_frames_or_pages_the_first_is_read_and_noted(tmp_path, suffix):
    path = tmp_path / f"frames.{suffix}"
    FRAMES[0].save(path, save_all=True, append_images=FRAMES[1:])
    image, notes = decode_and_note(path, None, 3)
    assert np.abs(image.double().mean(dim=(1, 2)).numpy() - [200, 100, 50]).max() < 6
    assert notes == [FIRST_FRAME]
    FRAMES[0].save(path)
    assert decode_and_note(path, None, 3)[1] == []


def test_the_first_frame_is_read_where_the_second_is_damaged(tmp_path):
    FRAMES[0].save(tmp_path / "cut.gif", save_all=True, append_images=FRAMES[1:])
    content = (tmp_path / "cut.gif").read_bytes()
    second = content.index(b"\x2c", content.index(b"\x2c") + 10)
    for end in (second + 1, second + 5, second + 11):
        (tmp_path / "cut.gif").write_bytes(content[:end])
        assert decode(tmp_path / "cut.gif", None, 3)[:, 0, 0].tolist() == pytest.approx([200, 100, 50], abs=6)


def test_the_photograph_of_a_phone_with_previews_is_one_picture(tmp_path):
    FRAMES[0].save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=FRAMES[1:])
    image, notes = decode_and_note(tmp_path / "phone.jpg", None, 3)
    assert image[:, 0, 0].tolist() == pytest.approx([200, 100, 50], abs=3)
    assert notes == []


def test_a_decoder_that_fails_in_its_own_way_is_a_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "image.avif"
    Image.fromarray(COLOURS).resize((64, 64)).save(path)
    whole = path.read_bytes()
    pixels = whole.index(b"mdat") + 4
    path.write_bytes(whole[:pixels] + bytes(len(whole) - pixels))  # a RuntimeError of Pillow
    with pytest.raises(ValueError, match=f"^cannot read image {path}: Failed to decode"):
        decode(path, None, 3)


def test_a_warning_of_pillow_becomes_a_note_on_the_file(tmp_path):
    path = tmp_path / "image.tif"
    Image.fromarray(COLOURS).save(path)
    content = path.read_bytes()
    length = content.index(np.array([284, 3], dtype="<u2").tobytes())  # the tag of the planes, which is not needed
    path.write_bytes(content[: length + 4] + b"\x09" + content[length + 5 :])
    assert decode_and_note(path, None, 3)[1] == [SUSPICIOUS]
    assert survey([path]).sizes == [(7, 11)]


def test_mistakes_in_exif_data_are_not_worth_a_note(tmp_path):
    path = tmp_path / "photo.jpg"
    Image.fromarray(COLOURS).save(path, exif=b"Exif\0\0II*\0\x08\0\0\0\xff\0")  # 255 entries, and none follows
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Image.open(path).getexif()
    assert warned
    assert decode_and_note(path, None, 3)[1] == []


def test_a_pipe_with_the_name_of_a_photo_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "photo.jpg")
    with pytest.raises(ValueError, match="it is no regular file"):
        decode(tmp_path / "photo.jpg", None, 3)
