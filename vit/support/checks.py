"""Checks of arguments, one for each kind of number: each raises a ValueError that quotes the value and the remedy."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

SMALLEST_CROP = 0.1  # a smaller share from a stranger's file would scale images beyond the memory


def check_positive_int(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a whole number of at least 1.

    >>> check_positive_int("depth", 0)
    Traceback (most recent call last):
    ValueError: depth (0) must be a positive whole number

    Raises:
        ValueError: If it is not.
    """
    _check(_is_whole(value) and value >= 1, name, value, "a positive whole number", remedy)


def check_natural(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a whole number of at least 0.

    Raises:
        ValueError: If it is not.
    """
    _check(_is_whole(value) and value >= 0, name, value, "a whole number of at least 0", remedy)


def check_positive(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a finite number above 0.

    Raises:
        ValueError: If it is not.
    """
    _check(_is_finite(value) and value > 0, name, value, "a number above 0", remedy)


def check_non_negative(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a finite number of at least 0.

    Raises:
        ValueError: If it is not.
    """
    _check(_is_finite(value) and value >= 0, name, value, "a number of at least 0", remedy)


def check_share(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a share of less than the whole: in [0, 1).

    >>> check_share("drop_path", 1, "0.1 is usual")
    Traceback (most recent call last):
    ValueError: drop_path (1) must be in [0, 1): 0.1 is usual

    Raises:
        ValueError: If it is not.
    """
    _check(_is_finite(value) and 0 <= value < 1, name, value, "in [0, 1)", remedy)


def check_positive_share(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a share above 0: in (0, 1].

    Raises:
        ValueError: If it is not.
    """
    _check(_is_finite(value) and 0 < value <= 1, name, value, "in (0, 1]", remedy)


def check_crop_ratio(value: Any) -> None:
    """Check the share of each side that a centre crop keeps: images are scaled to at most ten times the model's input.

    Raises:
        ValueError: If it is below 0.1 or above 1.
    """
    is_right = is_crop_ratio(value)
    _check(is_right, "crop_ratio", value, f"from {SMALLEST_CROP} to 1", "1 keeps whole images")


def is_crop_ratio(value: Any) -> bool:
    """Return whether a value is a share of each side that a centre crop may keep."""
    return _is_finite(value) and SMALLEST_CROP <= value <= 1


def check_probability(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a probability: in [0, 1].

    Raises:
        ValueError: If it is not.
    """
    _check(_is_finite(value) and 0 <= value <= 1, name, value, "in [0, 1]", remedy)


def check_share_range(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a smallest and a largest share of something, both in (0, 1].

    Raises:
        ValueError: If it is not.
    """
    is_range = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_finite, value))
    is_right = is_range and 0 < value[0] <= value[1] <= 1
    _check(is_right, name, value, "the smallest and the largest share, in (0, 1]", remedy)


def check_size(name: str, value: Any, remedy: str = "") -> None:
    """Check that a value is a size in pixels: a positive whole number, or two of them, rows and columns.

    >>> check_size("image_size", (32, 0))
    Traceback (most recent call last):
    ValueError: image_size ((32, 0)) must be a positive whole number, or two of them (rows, columns)

    Raises:
        ValueError: If it is not.
    """
    sides = value if isinstance(value, (tuple, list)) else (value, value)
    is_size = len(sides) == 2 and all(_is_whole(side) and side >= 1 for side in sides)
    _check(is_size, name, value, "a positive whole number, or two of them (rows, columns)", remedy)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Check that a value is one of several.

    >>> check_choice("decay", "step", ("cosine", "linear", "constant"))
    Traceback (most recent call last):
    ValueError: unknown decay 'step': choose 'cosine', 'linear' or 'constant'

    Raises:
        ValueError: If it is not.
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"unknown {name} {value!r}: choose {', '.join(others)} or {last}")


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a misspelt one, as a question; "" if none is.

    >>> nearest_hint("relevanse", ["rollout", "relevance"])
    ' (did you mean relevance?)'
    """
    near = difflib.get_close_matches(name, [other for other in known if other != name], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _check(is_right: bool, name: str, value: Any, kind: str, remedy: str) -> None:
    if not is_right:
        raise ValueError(f"{name} ({value!r}) must be {kind}{f': {remedy}' if remedy else ''}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_switch(name: str, value: Any) -> None:
    """Check that an argument is True or False: any text would count as True.

    >>> check_switch("qk_norm", "rms")
    Traceback (most recent call last):
    ValueError: qk_norm ('rms') must be True or False
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} ({value!r}) must be True or False")
