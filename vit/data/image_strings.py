"""Pictures with a text each, for training readers on one's own data."""

import unicodedata
from pathlib import Path
from typing import ClassVar

import torch

from vit.data.alphabet import Alphabet
from vit.data.folder import check_split_names
from vit.data.image_files import NAMED, ImageFiles, image_files_below
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.rows import read_rows
from vit.data.split import stratified_split
from vit.data.survey import survey
from vit.support.checks import check_positive_int, check_share, check_size

TEXTS = "texts.csv"
COLUMNS = ("file", "text")


class ImageStrings(ImageDataModule):
    """Pictures and the text on each, which ``texts.csv`` names: a line ``file,text`` for each picture.

    The layout is ``root/train/texts.csv`` beside ``root/val/texts.csv``, ``root/test/texts.csv`` or both, or a single
    ``root/texts.csv``, whose pictures are split. Files are named from the folder of their ``texts.csv``. Missing
    validation pictures are held out of the training pictures.

    Args:
        root: The folder.
        letters: The letters that texts are made of, in any script; None takes those of the texts.
        max_length: Maximum number of letters of a text; None takes that of the texts.
        image_size: Rows and columns to which every picture is scaled, whatever its aspect ratio, or one number for
            both; None for the size of the pictures, if all have the same.
        test_fraction: Share of the pictures held out for test, if there is a single ``texts.csv``.
        skip_damaged: Whether files that cannot be read are left out and named; else they are an error before the
            training.
        batch_size: Pictures per step and device.
        val_fraction: Share of the training pictures held out for validation; 0 trains on all, without validation.
        crop_padding: Largest random shift of training pictures, in pixels; 0 for no shift.
        num_workers: Processes that decode image files; None for one per CPU core, at most 8.
        memory_limit: Largest data set kept in memory, in GB of decoded pixels; a larger one is decoded again in each
            epoch.
        seed: Seed of the order of the pictures; the splits are the same for every seed.

    Raises:
        ValueError: If a picture has no text or a text no picture, a text does not fit ``letters`` or ``max_length``, or
            an argument is out of its range.
    """

    num_classes = 0
    class_names: ClassVar[list[str]] = []

    def __init__(
        self,
        root: str,
        letters: str | None = None,
        max_length: int | None = None,
        image_size: int | tuple[int, int] | None = None,
        test_fraction: float = 0.2,
        skip_damaged: bool = False,
        batch_size: int = 64,
        val_fraction: float = 0.1,
        crop_padding: int = 0,
        num_workers: int | None = None,
        memory_limit: float = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            val_fraction=val_fraction,
            crop_padding=crop_padding,
            num_workers=num_workers,
            memory_limit=memory_limit,
            seed=seed,
        )
        check_share("test_fraction", test_fraction, "0.2 holds out one picture in five")
        if max_length is not None:
            check_positive_int("max_length", max_length)
        self.root = Path(root)
        self.test_fraction = test_fraction
        self.skip_damaged = skip_damaged
        self.texts = read_splits(self.root)
        letters = None if letters is None else unicodedata.normalize("NFC", letters)  # as the texts are
        every = [text for texts in self.texts.values() for text in texts.values()]
        self.letters = "".join(sorted(set("".join(every)))) if letters is None else letters
        self.max_length = max(1, *map(len, every)) if max_length is None else max_length
        self.alphabet = Alphabet(self.letters)
        self.tokens = {
            stage: self.alphabet.encode([*texts.values()], self.max_length).tolist()
            for stage, texts in self.texts.items()
        }
        found = survey([path for texts in self.texts.values() for path in texts])
        self.in_channels = found.in_channels
        self.image_size = _size_of(image_size, set(found.sizes))
        # As in ImageFolder: the first linear layer can learn any other scale.
        self.mean = [0.485, 0.456, 0.406] if self.in_channels == 3 else [0.449]
        self.std = [0.229, 0.224, 0.225] if self.in_channels == 3 else [0.226]

    @property
    def has_validation(self) -> bool:
        """Whether there is a folder of validation pictures, or some are held out."""
        return "val" in self.texts or super().has_validation

    def prepare_data(self) -> None:
        """Decode in one process if several train; the others read its cache."""
        if self.trainer is not None and self.trainer.world_size > 1:
            self.load_sets()

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the splits; those without a folder are held out of the training pictures."""
        total = sum(len(texts) for texts in self.texts.values())
        sets = {stage: self._image_set(stage, total) for stage in self.texts}
        held_out: list[tuple[Stage, str, float]] = [("val", "val_fraction", self.val_fraction)]
        if set(sets) == {"train"}:
            held_out.insert(0, ("test", "test_fraction", self.test_fraction))
        for stage, name, fraction in held_out:
            if stage in sets or fraction == 0:
                continue
            rest, chosen = stratified_split(torch.zeros(len(sets["train"].labels)), fraction)
            if len(chosen) == 0:
                raise ValueError(f"{name} ({fraction}) of {len(rest)} pictures holds out none: add pictures, or set 0")
            sets[stage], sets["train"] = sets["train"].subset(chosen), sets["train"].subset(rest)
        return sets

    def _image_set(self, stage: Stage, total: int) -> ImageSet:
        files = ImageFiles([*self.texts[stage]], self.tokens[stage], self.image_size, self.in_channels, stretch=True)
        return self.decode_or_stream(files, total, skip_damaged=self.skip_damaged)


def _size_of(asked: int | tuple[int, int] | None, sizes: set[tuple[int, int]]) -> tuple[int, int]:
    """Return the size that pictures are scaled to."""
    if asked is not None:
        check_size("image_size", asked)
        return (asked, asked) if isinstance(asked, int) else (asked[0], asked[1])
    if len(sizes) > 1:
        shown = ", ".join(f"{rows}x{columns}" for rows, columns in sorted(sizes)[:3])
        raise ValueError(
            f"the pictures have {len(sizes)} sizes, such as {shown}: name rows and columns that all are scaled to, "
            "such as --data.image_size [32,128]"
        )
    return sizes.pop()


def read_splits(root: Path) -> dict[Stage, dict[Path, str]]:
    """Return the text of each picture in each split; a single ``texts.csv`` is "train".

    Raises:
        ValueError: If there is none, or one does not fit its pictures.
    """
    if (root / TEXTS).is_file():
        return {"train": read_texts(root)}
    if root.is_dir():
        check_split_names(root)
    stages: tuple[Stage, ...] = ("train", "val", "test")
    splits: dict[Stage, dict[Path, str]] = {}
    for stage in stages:
        if (root / stage / TEXTS).is_file():
            splits[stage] = read_texts(root / stage)
        elif (root / stage).is_dir() and image_files_below(root / stage):
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
        ValueError: If the file is no such table, or a picture has no text or a text no picture.
    """
    path = folder / TEXTS
    _, rows = read_rows(path, COLUMNS)
    texts: dict[Path, str] = {}
    named: set[Path] = set()
    for number, row in rows:
        name, text = row["file"], row["text"]
        if not name:
            raise ValueError(f"line {number} of {path} has no file: write file,text")
        picture = folder / name
        if picture.resolve() in named:
            raise ValueError(f"line {number} of {path} names {picture.name} again: keep one line for each picture")
        named.add(picture.resolve())
        # Letters with accents are written in two ways that look the same.
        texts[picture] = unicodedata.normalize("NFC", text)
    if not texts:
        raise ValueError(f"{path} names no pictures: write a line file,text for each")
    found = set(image_files_below(folder))
    if missing := [picture for picture in texts if not picture.is_file()]:
        raise ValueError(
            f"{path} names pictures that are not there: {_named(missing, folder)}; add them, or delete the lines"
        )
    if unnamed := sorted(picture for picture in found if picture.resolve() not in named):
        raise ValueError(f"pictures without a line in {path}: {_named(unnamed, folder)}; add lines, or delete them")
    return texts


def _named(paths: list[Path], folder: Path) -> str:
    shown = ", ".join(str(path).removeprefix(f"{folder}/") for path in paths[:NAMED])
    return f"{shown} and {len(paths) - NAMED:,} more" if len(paths) > NAMED else shown
