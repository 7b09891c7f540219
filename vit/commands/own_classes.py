"""Finds users' own classes, by a typed name or by the name in the config of a run that was typed.

No other file decides what is imported: the name in a checkpoint says what was trained, and imports nothing.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from vit.commands.configs import read_config
from vit.runs.folders import run_folder_of


def path_of(asked: Any) -> str | None:
    """Return the class path that ``--model``, ``--data`` or the part of a config asks for; None if it asks for none."""
    path = asked.get("class_path") if isinstance(asked, dict) else asked
    return str(path) if path else None


def find_own(path: str | None, base: type) -> type | None:
    """Return the class at a path outside the package, or an imported class of this name; None if there is neither.

    Raises:
        ValueError: If there is no class at the path, or it is not derived from ``base``.
    """
    if path is None or path.startswith("vit."):
        return None
    if "." not in path:
        return _imported(path, base)
    if not re.fullmatch(r"\w+(\.\w+)+", path):
        return None  # the parser refuses it
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # a package that the user's file needs
            raise ValueError(f"{path} needs {error.name}, which is not installed: pip install {error.name}") from error
        raise ValueError(
            f"no module {module} for {path}: add its folder to PYTHONPATH, such as PYTHONPATH=. ({sys.argv[0]} is in "
            "another one)"
        ) from error
    if not isinstance(found, type):
        raise ValueError(f"{module} has no class {name}: look at its spelling")
    if not issubclass(found, base):
        raise ValueError(f"{path} is no {base.__name__}: derive it from one")
    return found


def _imported(name: str, base: type) -> type | None:
    """Return the class of this name outside the package that is derived from ``base``; None if there is none."""
    for cls in base.__subclasses__():
        outside = cls.__module__.partition(".")[0] not in ("vit", "lightning")
        if found := cls if outside and cls.__name__ == name else _imported(name, cls):
            return found
    return None


def part_of_run(checkpoint: Path, part: str) -> dict[str, Any]:
    """Return the "model" or "data" of the ``config.yaml`` beside a checkpoint; {} if there is none with a class."""
    folder = run_folder_of(checkpoint)
    if folder is None or not (folder / "config.yaml").exists():
        return {}
    found = read_config(folder / "config.yaml").get(part)
    return found if isinstance(found, dict) and "class_path" in found else {}
