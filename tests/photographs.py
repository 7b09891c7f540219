"""A made folder of photographs, as people have them: of all sizes, turned by the camera, some grey, some damaged."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps
from sklearn.datasets import load_sample_image

# Parts of the two pictures of scikit-learn: file, left, top, right, bottom.
SCENES = {
    "flower": ("flower.jpg", 170, 85, 450, 360),
    "leaves": ("flower.jpg", 460, 0, 640, 427),
    "sky": ("china.jpg", 340, 0, 560, 270),
    "temple": ("china.jpg", 60, 30, 360, 380),
    "trees": ("china.jpg", 320, 270, 640, 427),
}
SHORTEST, LONGEST = 300, 1500  # sides in pixels
ROTATED = {1: None, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}  # how a camera stores what is upright


def make_photographs(folder: Path, per_class: int | Sequence[int] = 30, seed: int = 0, scale: float = 1.0) -> Path:
    """Write five classes of JPEG photographs, the first one grey, as folder/CLASS/NUMBER.jpg, and return the folder.

    Each is a random part of a scene in changed colours, with noise.

    Args:
        folder: The folder, which is created.
        per_class: Photographs of each class, or of every one.
        seed: Seed of the choices.
        scale: Factor of the sizes, which are from 300 to 1,500 pixels a side.
    """
    rng = np.random.default_rng(seed)
    counts = [per_class] * len(SCENES) if isinstance(per_class, int) else per_class
    for (name, (picture, *box)), count in zip(SCENES.items(), counts, strict=True):
        scene = Image.fromarray(load_sample_image(picture)).crop(box)
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            photograph = _photograph(scene, rng, scale)
            if name == "flower" and number == 0:
                photograph = photograph.convert("L")
            orientation = int(rng.choice([*ROTATED]))
            if ROTATED[orientation] is not None:
                photograph = photograph.transpose(ROTATED[orientation])
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            photograph.save(folder / name / f"{number:03}.jpg", quality=85, exif=exif)
    return folder


def damage(folder: Path) -> list[Path]:
    """Add a truncated photograph, an empty file and a text to a folder of photographs, and return them by name."""
    whole = (folder / "sky/000.jpg").read_bytes()
    damaged = {"leaves/empty.jpg": b"", "sky/truncated.jpg": whole[: len(whole) // 2], "trees/text.jpg": b"a list\n"}
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in damaged]


def _photograph(scene: Image.Image, rng: np.random.Generator, scale: float) -> Image.Image:
    sides = rng.uniform(SHORTEST, LONGEST, size=2) * scale
    width, height = (max(1, round(side)) for side in sides)
    share = rng.uniform(0.5, 0.9)
    part_width, part_height = (round(share * side) for side in scene.size)
    left, top = rng.integers(scene.width - part_width + 1), rng.integers(scene.height - part_height + 1)
    part = scene.crop((left, top, left + part_width, top + part_height))
    part = ImageOps.mirror(part) if rng.random() < 0.5 else part
    pixels = np.asarray(ImageOps.fit(part, (width, height)), dtype=np.float32)[:, :, rng.permutation(3)]
    changed = pixels * rng.uniform(0.5, 1.2, size=3) + rng.uniform(0, 50) + rng.normal(0, 5, pixels.shape)
    return Image.fromarray(changed.clip(0, 255).astype(np.uint8))
