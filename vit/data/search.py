"""The search for image files below a folder: what is found, and what is left out and why.

Links to files and to folders are followed, as data sets are often folders of links. Each folder is read only once, even
if several links lead to it, so circular links end. A picture with two names is found as an identical image.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vit.data.formats import why_not_read

HIDDEN = "hidden"
READ_ALREADY = "link to a folder that is read already"


@dataclass
class Found:
    """The image files below a folder, sorted, and what is left out, by reason.

    Args:
        images: Files whose suffix is that of a format that is read.
        left_out: Other files, folders and links. A reason begins with the suffix of the files, if it is their format.
    """

    images: list[Path] = field(default_factory=list)
    left_out: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))

    def leave_out(self, reason: str, paths: Iterable[Path]) -> None:
        """Add files to those that are left out."""
        self.left_out[reason].extend(paths)

    @property
    def hint(self) -> str:
        """For a message about a folder without images: what to do with its files in formats that are not read."""
        reasons = [reason for reason in self.left_out if reason.startswith(".") and not reason.endswith(": no image")]
        return f" ({'; '.join(sorted(reasons))})" if reasons else ""


def list_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted.

    Raises:
        ValueError: If the folder cannot be read: a class must not go missing silently.
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None


def search(root: Path) -> Found:
    """Return the image files below a folder, and what is left out.

    Raises:
        ValueError: If a folder cannot be read.
    """
    found = Found()
    folders, links, known = [root], [], set()
    while folders or links:
        # Folders come before links to them, so that a picture gets the name of the folder it lies in.
        folder = folders.pop() if folders else links.pop()
        if (real := folder.resolve()) in known:
            found.leave_out(READ_ALREADY, [folder])
            continue
        known.add(real)
        for path in list_folder(folder):
            reason = why_left_out(path)
            if reason is not None:
                found.leave_out(reason, [path])
            elif path.is_dir():
                (links if path.is_symlink() else folders).append(path)
            else:
                found.images.append(path)
    found.images.sort()
    return found


def why_left_out(path: Path) -> str | None:
    """Return why a file, a folder or a link is left out of a search; None if it is a folder or a readable image."""
    if path.name.startswith("."):
        return HIDDEN
    try:
        if path.is_dir():
            return None
        if not path.is_file():
            return "link to nothing" if path.is_symlink() else "no regular file"
    except OSError as error:  # the folder can be listed, but its files cannot be reached
        raise _unreadable(path.parent, error) from None
    reason = why_not_read(path)
    return reason and f"{path.suffix.lower() or 'without a suffix'}: {reason}"


def _unreadable(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"cannot read the folder {folder}: {error.strerror}; allow it (chmod u+rx), or move the folder elsewhere"
    )
