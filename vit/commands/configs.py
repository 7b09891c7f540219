"""The configs that come with the package, by their names."""

from collections.abc import Sequence
from pathlib import Path

from vit.support.checks import nearest_hint

# In a wheel they lie inside the package; in a checkout, beside it.
FOLDERS = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")


def packaged_configs() -> dict[str, Path]:
    """Return the files of the configs by their names, such as "digits"."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_configs(arguments: Sequence[str]) -> list[str]:
    """Return typed arguments with the file of a packaged config in place of its name: ``--config digits``.

    Raises:
        ValueError: If a config is neither a file nor a packaged name.
    """
    words = [str(word) for word in arguments]
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--config", "-c") and equals:
            words[i] = f"{option}={find_config(value)}"
        elif i and words[i - 1] in ("--config", "-c"):
            words[i] = find_config(word)
    return words


def find_config(name: str) -> str:
    """Return the file that a typed config stands for.

    >>> Path(find_config("digits")).name
    'digits.yaml'
    """
    if Path(name).exists():
        return name
    known = packaged_configs()
    wanted = Path(name).stem if Path(name).parent in (Path(), Path("configs")) else name
    if wanted not in known:
        raise ValueError(f"no config {name}{nearest_hint(wanted, known)}: name a file, or one of {', '.join(known)}")
    return str(known[wanted])
