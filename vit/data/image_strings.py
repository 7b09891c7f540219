"""Pictures with a text each, for training readers on one's own data."""

import unicodedata
from pathlib import Path
from typing import ClassVar, get_args

from vit.data.alphabet import Alphabet
from vit.data.csv_rows import check_there, read_rows
from vit.data.folder import check_split_names
from vit.data.formats import MAX_PIXELS
from vit.data.identical import Duplicates
from vit.data.inventory import first_names
from vit.data.labelled_files import LabelledFiles, LabelledPaths
from vit.data.module import Stage
from vit.data.search import search
from vit.data.survey import Survey
from vit.support.checks import check_positive_int

TEXTS = "texts.csv"


class ImageStrings(LabelledFiles):
    """Pictures and the text on each; ``texts.csv`` has a line ``file,text`` for each picture.

    The layout is ``root/train/texts.csv`` beside ``root/val/texts.csv``, ``root/test/texts.csv`` or both, or a single
    ``root/texts.csv``, whose pictures are split. Files are relative to their ``texts.csv``. Missing validation pictures
    are held out of the training pictures.

    Args:
        root: The folder.
        letters: The letters that texts are made of, in any script; None takes those of the texts.
        max_length: Maximum number of letters of a text; None takes that of the texts.
        image_size: Rows and columns to which every picture is scaled, whatever its aspect ratio, or one number for
            both; None for the size of the pictures, if all have the same.
        test_fraction: Share of the pictures held out for test, if there is a single ``texts.csv``.
        skip_damaged: Whether files that cannot be read are left out and named; if not, they are an error before the
            training.
        duplicates: What is done about files with the same bytes: "warn" names them, "error" stops before the training,
            "drop" keeps one of each (if copies are in several splits, that of test, else that of val; none if their
            texts differ).
        max_pixels: Most pixels of an image file; larger ones count as damaged, as a small file may claim to be huge.
        batch_size: Pictures per step and device.
        val_fraction: Share of the training pictures held out for validation; 0 trains on all, without validation.
        crop_padding: Largest random shift of training pictures, in pixels; 0 for no shift.
        num_workers: Processes that decode image files; None for one per CPU core, at most 8.
        memory_limit: Largest data set kept in memory, in GB of decoded pixels; a larger one is decoded in each epoch.
        seed: Seed of the order of the pictures; the splits are the same for every seed.

    Raises:
        ValueError: If a picture has no text or a text no picture, a text does not fit ``letters`` or ``max_length``, or
            an argument is out of its range.
    """

    class_names: ClassVar[list[str]] = []
    stretch = True

    def __init__(
        self,
        root: str,
        letters: str | None = None,
        max_length: int | None = None,
        image_size: int | tuple[int, int] | None = None,
        test_fraction: float = 0.2,
        skip_damaged: bool = False,
        duplicates: Duplicates = "warn",
        max_pixels: int = MAX_PIXELS,
        batch_size: int = 64,
        val_fraction: float = 0.1,
        crop_padding: int = 0,
        num_workers: int | None = None,
        memory_limit: float = 4.0,
        seed: int = 0,
    ) -> None:
        if max_length is not None:
            check_positive_int("max_length", max_length)
        self.letters, self.max_length = letters, max_length
        super().__init__(
            root,
            image_size=image_size,
            test_fraction=test_fraction,
            skip_damaged=skip_damaged,
            duplicates=duplicates,
            max_pixels=max_pixels,
            batch_size=batch_size,
            val_fraction=val_fraction,
            crop_padding=crop_padding,
            num_workers=num_workers,
            memory_limit=memory_limit,
            seed=seed,
        )

    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the pictures of each split and their tokens; a single ``texts.csv`` is "train"."""
        splits = read_splits(self.root)
        left_out = search(self.root).left_out.items()
        self.not_read = {
            reason: files for reason, paths in left_out if (files := [p for p in paths if p.name != TEXTS])
        }
        texts = [text for split in splits.values() for text in split.values()]
        if self.letters is None:
            self.letters = "".join(sorted(set("".join(texts))))
        self.letters = unicodedata.normalize("NFC", self.letters)  # as the texts are
        if self.max_length is None:
            self.max_length = max(1, *map(len, texts))
        self.alphabet = Alphabet(self.letters)
        return {
            stage: ([*split], self.alphabet.encode([*split.values()], self.max_length).tolist())
            for stage, split in splits.items()
        }

    def choose_size(self, found: Survey) -> tuple[int, int]:
        """Return the size of the pictures; several sizes are a ValueError."""
        sizes = sorted(set(found.sizes))
        if len(sizes) > 1:
            shown = ", ".join(f"{rows}x{columns}" for rows, columns in sizes[:3])
            raise ValueError(
                f"the pictures have {len(sizes)} sizes, such as {shown}: name rows and columns that all are scaled to, "
                "such as --data.image_size [32,128]"
            )
        return sizes[0]


def read_splits(root: Path) -> dict[Stage, dict[Path, str]]:
    """Return the text of each picture in each split; a single ``texts.csv`` is "train"."""
    if (root / TEXTS).is_file():
        return {"train": read_texts(root)}
    if root.is_dir():
        check_split_names(root)
    splits: dict[Stage, dict[Path, str]] = {}
    for stage in get_args(Stage):
        if (root / stage / TEXTS).is_file():
            splits[stage] = read_texts(root / stage)
        elif (root / stage).is_dir() and search(root / stage).images:
            raise ValueError(f"{root / stage} has pictures and no {TEXTS}: write a line file,text for each of them")
    if "train" not in splits:
        raise ValueError(
            f"no {TEXTS} in {root} or {root / 'train'}: write a line file,text for each picture, after the line "
            '"file,text"'
        )
    return splits


def read_texts(folder: Path) -> dict[Path, str]:
    """Return the text of each picture that the ``texts.csv`` of a folder names.

    Raises:
        ValueError: If the file is not such a table, a picture has no text, or a text has no picture.
    """
    path = folder / TEXTS
    texts: dict[Path, str] = {}
    named: set[Path] = set()
    for number, row in read_rows(path, "file", "text"):
        picture = folder / row["file"]
        if picture.resolve() in named:
            raise ValueError(f"line {number} of {path} names {picture.name} again: keep one line for each picture")
        named.add(picture.resolve())
        # Unicode has two ways to write letters with accents, which look the same.
        texts[picture] = unicodedata.normalize("NFC", row["text"].strip())
    check_there([*texts], folder, path)
    if unnamed := [picture for picture in search(folder).images if picture.resolve() not in named]:
        names = first_names(unnamed, folder, most=10)
        raise ValueError(f"pictures without a line in {path}: {names}; add lines, or delete them")
    return texts
