"""What all tests share."""

import gc
import os
from collections.abc import Iterator

import pytest

SLOW_EXAMPLES = ("vit.weights.export.export",)  # docstrings have no marks

gc.disable()  # until all tests are collected: imports leave no garbage, and a look at all that they leave takes long


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Work on one core: for models as small as here, threads cost more than they gain."""
    import torch  # takes seconds, and the process that hands out the tests does without

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _quiet_children() -> None:
    """Let the processes that tests start print no warnings about the text files of libraries."""
    os.environ.pop("PYTHONWARNDEFAULTENCODING", None)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """A browser for all pages: it takes a second to start."""
    from tests.browser import running_browser

    with running_browser() as browser:
        yield browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests as slow. Begin with the modules that copy their process, then with those that have slow tests.

    A copy cannot train once some test before it had autograd start threads. At the end no worker waits for a slow test.
    """
    for item in items:
        if item.name in SLOW_EXAMPLES or item.get_closest_marker("long"):
            item.add_marker("slow")
    slow = {item.module for item in items if item.get_closest_marker("slow") and isinstance(item, pytest.Function)}
    copying = {module for module in slow if {"forked", "torture"} & vars(module).keys()}
    items.sort(
        key=lambda item: (getattr(item, "module", None) not in copying, getattr(item, "module", None) not in slow)
    )


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collection: a look at it takes half a second. No test unfreezes it."""
    gc.freeze()
    gc.set_threshold(700, 10, 50)  # what lives long is looked at more rarely than by Python's own 10
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let Python collect what is left before modules are taken apart: locks of files look for them."""
    gc.unfreeze()
