"""Optional dependencies, which are imported where they are used."""

from importlib import import_module
from types import ModuleType


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of the package installs.

    >>> import_extra("a_module", "explain")
    Traceback (most recent call last):
    ValueError: this needs a_module, which is not installed: pip install 'vit-attention[explain]'

    Raises:
        ValueError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"this needs {error.name}, which is not installed: pip install 'vit-attention[{extra}]'"
        ) from error
