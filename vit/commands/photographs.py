"""Image files of a command line: finding them, and naming and writing the files that are made of them."""

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from vit.data.formats import MAX_PIXELS, open_image
from vit.data.image_files import ImageFiles, name_unreadable
from vit.data.inventory import inventory_of_folder
from vit.data.search import search
from vit.explain.inputs import read_images, read_pixels
from vit.explain.photograph import Photograph, locate, read_shown
from vit.explain.photograph_overlay import cell_boxes
from vit.support.files import replacing
from vit.support.printable import csv_text, printable

__all__ = [
    "CELL_COLUMNS",
    "Photograph",
    "distinct_names",
    "find_images",
    "locate",
    "read_images",
    "read_pixels",
    "read_shown",
    "without_damaged",
    "write_cells",
]

TRANSPARENT = "transparent in places, which are read in the colours that lie below"
CELL_COLUMNS = (
    *("file", "width", "height", "exif_orientation", "method", "row", "column"),
    *("left", "top", "right", "bottom", "value"),
)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given files and all images below the given folders, each once; print what the folders hold.

    Raises:
        ValueError: If a path does not exist, or a folder contains no image.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"no image at {path}: check the name and the current folder ({Path.cwd()})")
        if not path.is_dir():
            files.append(path)
            continue
        found = search(path)
        if not found.images:
            remedy = "give one with files such as photo.jpg or photo.png"
            raise ValueError(f"no images in the folder {path}: {remedy}{found.hint}")
        print(inventory_of_folder(path, found))
        files += found.images
    return list(dict.fromkeys(files))


def without_damaged(files: Sequence[Path], max_pixels: int = MAX_PIXELS) -> list[Path]:
    """Return the files that can be read; print notes on them, and what is wrong with the others.

    Raises:
        ValueError: If none can be read.
    """
    tried = ImageFiles([*files], [0] * len(files), (1, 1), in_channels=3, max_pixels=max_pixels)
    batch = tried.decode(torch.arange(len(files)))
    messages = batch.unreadable
    if len(messages) == len(files):
        first, *others = messages.values()
        more = f"; nor {len(others):,} more" if others else ""
        raise ValueError(f"{first}{more}: give images")
    for message in name_unreadable(messages):
        print(f"left out: {printable(message)}", file=sys.stderr)
    for index, path in enumerate(files):
        if index not in messages and _is_transparent(path, max_pixels):
            batch.notes.setdefault(index, []).append(TRANSPARENT)
    for message in name_unreadable(
        {index: f"{files[index]}: {'; '.join(notes)}" for index, notes in batch.notes.items()}
    ):
        print(printable(message), file=sys.stderr)
    return tried.without(messages).paths


def _is_transparent(path: Path, max_pixels: int) -> bool:
    with open_image(path, max_pixels) as file:
        has_alpha = "A" in file.getbands() or "transparency" in file.info
        return has_alpha and file.convert("RGBA").getchannel("A").getextrema()[0] < 255


def distinct_names(files: Sequence[Path]) -> list[str]:
    """Return a distinct name for each file: its stem; if stems are equal, with its suffix, then with its folders.

    >>> distinct_names([Path("cat.jpg"), Path("cat.png"), Path("dog.jpg")])
    ['cat.jpg', 'cat.png', 'dog']
    >>> distinct_names([Path("a/pets/cat.jpg"), Path("b/pets/cat.jpg")])
    ['a_pets_cat', 'b_pets_cat']
    """
    names: dict[int, str] = {}
    parents = [file.parent.resolve().parts[1:] for file in files]
    for folders in range(1 + max(map(len, parents), default=0)):
        for end in ("stem", "name"):
            unnamed = {
                index: printable("_".join([*parents[index][len(parents[index]) - folders :], getattr(file, end)]))
                for index, file in enumerate(files)
                if index not in names and folders <= len(parents[index])
            }
            # Compared without case, as some file systems do.
            taken = Counter(name.casefold() for name in [*names.values(), *unnamed.values()])
            names |= {index: name for index, name in unnamed.items() if taken[name.casefold()] == 1}
    # Two of a/b_c.jpg and a_b/c.jpg, or one file named twice.
    return [names.get(index, f"{printable(file.name)}_{index + 1}") for index, file in enumerate(files)]


def write_cells(
    path: Path,
    photographs: Sequence[Photograph],
    maps: Mapping[str, Sequence[Tensor]],
    cells: Tensor | None = None,
) -> None:
    """Write a table of the cells of all maps: where each lies in its photograph as taken, and its value.

    Args:
        path: The CSV file.
        photographs: The photographs.
        maps: By method, the map of each photograph, (1, rows, columns).
        cells: The patch that each pixel given to the model belongs to, as in ``overlay``.
    """
    with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(CELL_COLUMNS)
        for (method, values), (index, photograph) in product(maps.items(), enumerate(photographs)):
            facts = (
                csv_text(str(photograph.path)),
                photograph.width,
                photograph.height,
                photograph.orientation,
                method,
            )
            boxes = cell_boxes(photograph.seen, values[index].shape[1:], cells)
            for row, column in product(*map(range, boxes.shape[:2])):
                box = (f"{edge:.2f}" for edge in boxes[row, column].tolist())
                writer.writerow((*facts, row, column, *box, f"{values[index][0, row, column]:.6g}"))
