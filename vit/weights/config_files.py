"""Reads the JSON files beside weights, which may be a stranger's, and the class names in them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_JSON = 2**24  # bytes of a config


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: If there is no such file, it is too large, or it holds something else.
    """
    if not path.exists():
        raise ValueError(f"no {path.name} in {path.parent}: name the file of the weights instead")
    if not path.is_file():
        raise ValueError(f"{path} is no regular file: take another copy")  # reading a pipe might never end
    try:
        with path.open("rb") as file:
            text = file.read(MOST_JSON + 1)
        if len(text) > MOST_JSON:
            raise ValueError(f"more than {MOST_JSON:,} bytes")
        contents = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}): take another copy") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} holds no object: take another copy")
    return contents


def read_parts(index: Path) -> list[str]:
    """Return the names of the files that hold the weights, by the index beside them."""
    places = read_json(index).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{index} is damaged: weight_map must name the file of each tensor")
    for name in names:
        if name in ("", "..") or Path(name).name != name:  # a stranger's file must name none outside of its folder
            raise ValueError(f"{index} is refused: its weight_map names {name!r}, which is no file of the same folder")
    return sorted(set(names))


def names_by_number(names: Mapping[Any, Any], origin: str) -> list[Any]:
    """Return class names in the order of their numbers, the rows of a head."""
    by_number = {int(number): name for number, name in names.items()}
    if sorted(by_number) != [*range(len(names))]:
        shown = ", ".join(map(str, sorted(by_number)))[:80]
        raise ValueError(f"{origin} names the classes {shown}: number them from 0 without gaps")
    return [by_number[number] for number in range(len(names))]
