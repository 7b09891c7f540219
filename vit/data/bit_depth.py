"""Converts pixels of 16 or 32 bits, or floats, to 8 bits, by rules that do not depend on the content of an image."""

import numpy as np
from PIL import ExifTags, Image

LARGEST = 65_535  # largest value of 16 bits; divided by 257, it is 255
SIGNED = (2,)  # the format of signed integers in a TIFF


def has_more_than_eight_bits(file: Image.Image) -> bool:
    """Return whether an opened image, whose pixels are not yet decoded, has integers of 16 or 32 bits, or floats."""
    # Pillow has no mode for colours of 16 bits and keeps the upper 8, so we look at the tiles of the file instead.
    return file.mode.startswith(("I", "F")) or any(";16" in str(tile[3]) for tile in getattr(file, "tile", ()))


def eight_bits(image: Image.Image) -> Image.Image:
    """Return an image with 8 bits a channel.

    - Grey integers of 16 and 32 bits must be from 0 to 65,535, and are divided by 257. Images of cameras with 12 bits
      become nearly black that way; ``is_nearly_black`` finds them.
    - Grey floats must be from 0 to 1, and are multiplied by 255 and rounded.
    - A grey TIFF whose zero is white is inverted, as Pillow inverts only those of 8 bits and fewer.
    - Colours of 16 bits need nothing: Pillow has already kept the upper 8 bits.
    - Palettes with transparency become RGBA; ``decode`` then drops the transparency, as for other images.

    Other values are refused. Scaling each image by its own smallest and largest value would make equal greys differ.

    >>> eight_bits(Image.new("F", (1, 1), 0.5)).getpixel((0, 0))
    128

    Raises:
        ValueError: If values are out of their range; the message names the range that was found and the remedy.
    """
    if image.mode.startswith("I"):
        values = np.asarray(image)
        _check_range(values, LARGEST, "integers")
        values = LARGEST - values if _is_zero_white(image) else values
        return Image.fromarray((values // 257).astype(np.uint8))
    if image.mode == "F":
        values = np.asarray(image)
        if not np.isfinite(values).all():
            raise ValueError("it has pixels that are not finite (NaN or infinite): replace them")
        # Resampling and rounding can leave values up to half a grey level beyond the range.
        levels = (255 * values.astype(np.float64)).round()
        _check_range(levels / 255, 1, "floats")
        levels = 255 - levels if _is_zero_white(image) else levels
        return Image.fromarray(levels.astype(np.uint8))
    if image.mode == "L" and _tag(image, ExifTags.Base.SampleFormat) == SIGNED:  # which Pillow takes for unsigned ones
        _check_range(np.asarray(image).view(np.int8), 255, "integers")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    return image


def _is_zero_white(image: Image.Image) -> bool:
    return _tag(image, ExifTags.Base.PhotometricInterpretation) == 0


def _tag(image: Image.Image, number: int) -> object:
    """Return a tag of an opened TIFF; None if it is not there, or the image is no TIFF."""
    return getattr(image, "tag_v2", {}).get(number)


def is_nearly_black(image: Image.Image) -> bool:
    """Return whether a decoded image of more than 8 bits stays below 1/16 of the range, as 12-bit values do."""
    sixteenth = 4_096 if image.mode.startswith("I") else 1 / 16 if image.mode == "F" else 16
    pixels = np.asarray(image)
    return bool((pixels[..., :-1] if image.getbands()[-1] in ("A", "a") else pixels).max() < sixteenth)


def _check_range(values: np.ndarray, largest: int, kind: str) -> None:
    low, high = values.min(), values.max()
    if low < 0 or high > largest:
        scale = next((f"divide them by {top}" for top in (255, LARGEST) if low >= 0 and high <= top), "rescale them")
        raise ValueError(
            f"its pixels are {kind} from {low:.6g} to {high:.6g}, and from 0 to {largest} is read: {scale}"
        )
