"""An inventory of the images of a run: how many of each class, what is left out and why, what is identical."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.data.identical import Identical, same_bytes
from vit.data.search import Found
from vit.support.printable import list_names, printable

NAMED = 3  # names of files that a line shows
MOST_ROWS = 20  # classes that a table shows
LONGEST_NAME = 40  # letters of a class that it shows


@dataclass
class Inventory:
    """The images of a run, in words.

    Args:
        root: The folder that names are relative to.
        counts: Labels of each split, by class; without classes, its number of images.
        class_names: Names of the classes.
        left_out: Files, folders and links that are left out, by reason.
        notes: Images that are read, but perhaps not as their owner expects, by the note on them.
        identical: Lines about identical images.
        images: Number of images of each split; None if each has one label, so that ``counts`` tell.
    """

    root: Path
    counts: Mapping[str, Sequence[int]]
    class_names: Sequence[str] = ()
    left_out: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    notes: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    identical: Sequence[str] = ()
    images: Mapping[str, int] | None = None

    @property
    def lines(self) -> list[str]:
        """The inventory, a line each."""
        found = [(reason, paths) for reason, paths in self.left_out.items() if paths]
        total = sum(len(paths) for _, paths in found)
        return [
            *self._count(),
            *([f"left out: {total:,}"] if found else []),
            *(f"  {len(paths):,} {reason} ({first_names(paths, self.root)})" for reason, paths in sorted(found)),
            *(
                f"{note}: {len(paths):,} ({first_names(paths, self.root)})"
                for note, paths in self.notes.items()
                if paths
            ),
            *self.identical,
        ]

    def __str__(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)

    def _count(self) -> list[str]:
        images = self.images or {split: sum(counts) for split, counts in self.counts.items()}
        totals = ", ".join(f"{count:,} {split}" for split, count in images.items())
        if not self.class_names:
            return [f"images of {printable(str(self.root))}: {totals}"]
        head = f"images of {len(self.class_names)} classes in {printable(str(self.root))}: {totals}"
        if len(self.class_names) > MOST_ROWS:
            spread = [f"{min(counts):,} to {max(counts):,} {split}" for split, counts in self.counts.items()]
            return [head, f"  of each class {', '.join(spread)}"]
        names = [_cut(printable(name)) for name in self.class_names]
        width = max(map(len, names))
        columns = {split: max(len(split), len(f"{max(counts):,}")) for split, counts in self.counts.items()}
        rows = [
            "  ".join([name.ljust(width), *(f"{self.counts[split][number]:>{columns[split]},}" for split in columns)])
            for number, name in enumerate(names)
        ]
        titles = "  ".join([" " * width, *(split.rjust(size) for split, size in columns.items())])
        return [head, f"  {titles}", *(f"  {row}" for row in rows)]


def first_names(paths: Sequence[Path], root: Path, most: int = NAMED) -> str:
    """Return the names of the first files, relative to the folder ``root``, and the number of the others."""
    return list_names(paths, most, lambda path: name_from(path, root))


def name_from(path: Path, root: Path) -> str:
    """Return the path of a file, relative to ``root`` if it lies below it, with control characters escaped."""
    return printable(str(path.relative_to(root) if path.is_relative_to(root) else path))


def inventory_of_folder(root: Path, found: Found) -> Inventory:
    """Return the inventory of images without labels, which a search found below a folder."""
    groups = [[found.images[index] for index in group] for group in same_bytes(found.images)]
    same = [f"identical images under several names: {_equal(groups, root)}"] if groups else []
    return Inventory(root, {"files": [len(found.images)]}, left_out=found.left_out, identical=same)


def describe_identical(found: Identical, root: Path, *, are_split: bool) -> list[str]:
    """Describe identical images, a line for each kind that there is.

    Args:
        found: The groups.
        root: The folder that names are relative to.
        are_split: Whether the training images are still to be split, which may separate two copies.
    """
    parted = ", and the split may part them" if are_split else ""
    kinds = {
        "in several classes, of which at most one is right": found.across_classes,
        "in several splits, which makes the scores too good": found.across_splits,
        f"under several names{parted}": found.others,
    }
    return [
        f"identical images {kind}: {_equal([[place.path for place in group] for group in groups], root)}"
        for kind, groups in kinds.items()
        if groups
    ]


def _equal(groups: Sequence[Sequence[Path]], root: Path) -> str:
    shown = list_names(groups, NAMED, lambda group: " = ".join(name_from(path, root) for path in group[:NAMED]))
    return f"{len(groups):,} ({shown})"


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
