"""Fixtures of the data tests: a temporary cache folder, image files, random images."""

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vit.data.image_files import ImageFiles

WriteImage = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder in place of ~/.cache."""
    home = tmp_path_factory.mktemp("cache_home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture
def write_image(tmp_path: Path) -> WriteImage:
    """Write an image of (rows, columns) below tmp_path, with random pixels seeded by its name."""

    def write(name: str, size: tuple[int, int] = (7, 11), mode: str = "RGB", **options: object) -> Path:
        pixels = np.random.default_rng(zlib.crc32(name.encode())).integers(256, size=(*size, 3), dtype=np.uint8)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert(mode).save(path, **options)
        return path

    return write


@pytest.fixture
def image_files(write_image: WriteImage) -> ImageFiles:
    """Thirteen colour images of 7x11 in three classes."""
    paths = [write_image(f"set/{number:02}.png") for number in range(13)]
    return ImageFiles(paths, [number % 3 for number in range(13)], image_size=(7, 11), in_channels=3)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seed the random numbers of each test, on the CPU: other devices would take a millisecond, a thousand times."""
    torch.default_generator.manual_seed(0)


@pytest.fixture
def noise() -> Callable[..., Tensor]:
    """``noise(b, c, h, w)``: images of random brightness and contrast."""

    def make(b: int, c: int, h: int, w: int) -> Tensor:
        low, high = torch.rand(2, b, 1, 1, 1).sort(dim=0).values
        return ((low + (high - low) * torch.rand(b, c, h, w)) * 256).floor().to(torch.uint8)

    return make
