"""Small shards, written as people have them: with a class as a number, as a name, or as JSON, or with none."""

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def picture(number: int, suffix: str = ".png") -> bytes:
    """An image of 6 x 5 pixels, of the level of its number."""
    content = io.BytesIO()
    Image.new("L", (6, 5), number).save(content, Image.registered_extensions()[suffix])
    return content.getvalue()


def write_tar(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write a plain tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def write_shards(folder: Path, classes: list[str | None], shards: int = 3, split: str = "train", first: int = 0) -> str:
    """Write images of the levels from ``first`` on, in turn into the shards, and return their pattern."""
    for shard in range(shards):
        files = []
        for number in range(shard, len(classes), shards):
            files.append((f"{number:03}.png", picture(first + number)))
            if classes[number] is not None:
                files.append((f"{number:03}.cls", classes[number].encode()))
        write_tar(folder / f"{split}-{shard:06}.tar", files)
    return f"{folder}/{split}-{{000000..{shards - 1:06}}}.tar"


def write_manifest(folder: Path, classes: list[str], **images: int) -> None:
    """Write a manifest of the shards in a folder, which says of one shard another number of images if asked."""
    shards = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            count = sum(name.endswith(".png") for name in tar.getnames())
        shards[path.name] = {"images": images.get(path.stem, count), "bytes": path.stat().st_size, "sha256": ""}
    (folder / "manifest.json").write_text(json.dumps({"source": "", "classes": classes, "shards": shards}))
