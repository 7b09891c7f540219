"""The configs that come with the package, by their names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vit.support.checks import nearest_hint

LARGEST = 16 * 2**20  # bytes of a config
DEEPEST = 50  # levels of nesting
MOST_VALUES = 100_000  # counted with those that aliases repeat
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
    path, known = Path(name), packaged_configs()
    wanted = path.stem if path.parent in (Path(), Path("configs")) else name
    if path.exists() and not (path.is_dir() and wanted in known):  # a folder photos/ of images is not the config
        return name
    if wanted not in known:
        raise ValueError(f"no config {name}{nearest_hint(wanted, known)}: name a file, or one of {', '.join(known)}")
    return str(known[wanted])


class _UniqueKeys(yaml.SafeLoader):
    """A loader that refuses a key that a mapping has twice; YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                message = f"{key.value} stands there twice: keep one of them"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> dict[str, Any]:
    """Return the arguments of a config: YAML with arguments by name, of a size that people write.

    Raises:
        ValueError: If the file is not such a config.
    """
    if path.is_dir():
        raise ValueError(f"the config {path} is a folder: name a file in it, such as {path / 'digits.yaml'}")
    if path.exists() and not path.is_file():
        raise ValueError(f"the config {path} is no regular file, and reading it might never end: save it as a file")
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise ValueError(f"the config {path} has {size / 1e6:,.0f} MB, which no config has: name another file")
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # a SafeLoader
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read the config {path}: {error}: save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot read the config {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"the config {path} is nested too deeply: take at most {DEEPEST} levels") from None
    except (yaml.YAMLError, ValueError) as error:
        if str(error).startswith("the config"):
            raise
        where = f" (line {mark.line + 1})" if (mark := getattr(error, "problem_mark", None)) else ""
        told = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        problem = " ".join(part for part in told if isinstance(part, str)) or str(error)
        tab = "; indent by spaces, not by tabs" if "\\t" in problem else ""
        raise ValueError(f"cannot read the config {path}: {problem}{where}{tab}") from None
    if not isinstance(content, dict):
        raise ValueError(f"the config {path} has no arguments by name, such as model: or data:; see configs/")
    _check_size(content, path)
    return content


def _check_size(content: Any, path: Path) -> None:
    """Check how deeply a config is nested, and how many values it has once its aliases are expanded."""
    counted: dict[int, int] = {}

    def count(value: Any, levels: int) -> int:
        if levels > DEEPEST:
            raise ValueError(f"the config {path} is nested too deeply: take at most {DEEPEST} levels")
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in counted:
            parts = value.values() if isinstance(value, dict) else value
            counted[id(value)] = 1 + sum(count(part, levels + 1) for part in parts)
        return counted[id(value)]

    if (values := count(content, 0)) > MOST_VALUES:
        raise ValueError(f"the config {path} says {values:,} values, which no config does: name another file")
