"""Formats of image files: which are read, why others are not, and how a file is opened.

We tell Pillow which formats to try. By default it tries all that it knows, whatever the name of the file: Ghostscript
would run a PostScript file named .jpg.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError, features

from vit.support.extras import import_extra

# The limit of Pillow. A file of a few kB may claim to hold any number of pixels.
MAX_PIXELS = 178_956_970
# Suffixes by Pillow's name of the format. An MPO is the JPEG of a phone or a stereo camera, and is opened as a JPEG.
SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
}
FORMAT_OF = {suffix: name for name, suffixes in SUFFIXES.items() for suffix in suffixes}
# Images that are not read, by their suffixes, and what to do with them.
OTHERS = {
    ".svg .svgz .eps .ps .ai .pdf .emf .wmf": "a drawing: export it as PNG",
    ".raw .cr2 .cr3 .crw .nef .arw .dng .orf .raf .rw2 .pef .srw": "raw data of a camera: export it as JPEG or TIFF",
    ".psd .psb .xcf .kra": "a project of an image editor: export it as PNG",
    ".dcm .dicom .nii .mha .nrrd": "a medical image: export it as 16-bit PNG or TIFF",
    ".czi .lif .nd2 .lsm .oib .svs .ndpi .mrxs .scn .vsi": "a microscope's file: export it as TIFF or PNG",
    ".jxl .jp2 .j2k .jpx .tga .ico .icns .exr .hdr .pfm .dds .pcx .fits": "a format that is not read: save it as PNG",
    ".mp4 .mov .avi .mkv .webm": "a film: export its frames as PNG",
}
REASON_OF = {suffix: reason for suffixes, reason in OTHERS.items() for suffix in suffixes.split()}
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
NEEDS_HEIC = "needs pillow-heif: pip install 'vit-attention[heic]'"
NEEDS_AVIF = "needs a Pillow that reads AVIF: pip install --upgrade pillow"


def why_not_read(path: Path) -> str | None:
    """Return why a file is not read as an image, by its suffix; None if it is read.

    >>> why_not_read(Path("cat.JPG")), why_not_read(Path("cat.psd")), why_not_read(Path("notes.txt"))
    (None, 'a project of an image editor: export it as PNG', 'no image')
    """
    suffix = path.suffix.lower()
    name = FORMAT_OF.get(suffix)
    if name == "HEIF" and find_spec("pillow_heif") is None:
        return NEEDS_HEIC
    if name == "AVIF" and not features.check("avif"):
        return NEEDS_AVIF
    return None if name else REASON_OF.get(suffix, "no image")


def open_image(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image file whose content is in one of the formats of ``SUFFIXES``; its pixels are not yet decoded.

    Raises:
        ValueError: If it is in another format, or has more pixels than ``max_pixels``; the message says which.
        OSError: If the file cannot be read.
    """
    if not path.is_file() and path.exists():
        raise ValueError("it is no regular file")
    # Pillow's own limit is global, its error names no file, and it prints a warning at half of the limit.
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        file = _identify(path)
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    if file.format == "TIFF":
        file.filename = ""  # with a name, Pillow maps a grey TIFF to memory, and mixes its rows if EXIF rotates it
    if file.width * file.height > max_pixels:
        with file:
            raise ValueError(
                f"it has {file.width:,} x {file.height:,} pixels, more than max_pixels ({max_pixels:,}): scale it "
                "down, or raise --data.max_pixels if its source is trusted"
            )
    return file


@cache
def _tried() -> list[str]:
    """Return the formats that this Pillow reads without an extra."""
    return [name for name in SUFFIXES if name != "HEIF" and (name != "AVIF" or features.check("avif"))]


def _identify(path: Path) -> Image.Image:
    try:
        return Image.open(_source(path), formats=_tried())
    except (UnidentifiedImageError, ValueError):
        with path.open("rb") as file:
            start = file.read(12)
    if start[4:8] == b"ftyp" and start[8:] in HEIC_BRANDS:
        if find_spec("pillow_heif") is None:
            raise ValueError(f"it is a HEIC image, which {NEEDS_HEIC}")
        if "HEIF" not in Image.OPEN:
            import_extra("pillow_heif", "heic").register_heif_opener()
        return Image.open(_source(path), formats=["HEIF"])
    raise ValueError(_why_unidentified(path, start))


def _source(path: Path) -> Path | BinaryIO:
    """Return what Pillow opens: the path of a file on a disk, or the content of a file in a shard."""
    return path if type(path) is type(Path()) else path.open("rb")


def _why_unidentified(path: Path, start: bytes) -> str:
    if start[4:8] == b"ftyp" and start[8:] in (b"avif", b"avis") and not features.check("avif"):
        return f"it is an AVIF image, which {NEEDS_AVIF}"
    if start[:4] in (b"II*\0", b"MM\0*"):
        return "it is a TIFF of a kind that Pillow does not read, such as colours as floats: save it with 8 or 16 bits"
    if start.startswith((b"%!PS", b"\xc5\xd0\xd3\xc6")):
        return f"it is a PostScript file, {REASON_OF['.eps']}"
    reason = REASON_OF.get(path.suffix.lower())
    return f"it is {reason}" if reason else "it is no image"
