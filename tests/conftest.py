"""What all tests share."""

import gc
import os
from collections.abc import Iterator

import pytest

from tests import durations

FORKING = {"forked", "torture", "torture_ranks"}  # what a module imports that copies its process

gc.disable()  # until all tests are collected: imports leave no garbage, and a look at all that they leave takes long


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``make durations``."""
    parser.addoption("--measure", action="store_true", help="write tests/durations.json anew")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests if that is asked for.

    Raises:
        pytest.UsageError: If not all of them are to run.
    """
    if config.getoption("measure"):
        options, is_worker = config.option, hasattr(config, "workerinput")
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not options.markexpr + options.keyword
        if not is_whole and not is_worker:
            raise pytest.UsageError("--measure writes a file about all tests: name none, and leave out -m and -k")
        config.pluginmanager.register(durations.Measurement())


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
    """Mark what takes long. Begin with the modules that copy their process, then with those that have long tests.

    A copy cannot train once some test before it had autograd start threads. At the end no worker waits for a long test.
    """
    durations.mark(items)
    functions = [item for item in items if isinstance(item, pytest.Function)]
    long = {item.module for item in functions if item.get_closest_marker("long")}
    copying = {module for module in {item.module for item in functions} if FORKING & vars(module).keys()}
    items.sort(
        key=lambda item: (getattr(item, "module", None) not in copying, getattr(item, "module", None) not in long)
    )


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collection: a look at it takes half a second. No test unfreezes it."""
    gc.freeze()
    gc.set_threshold(700, 10, 50)  # what lives long is looked at more rarely than by Python's own 10
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let Python collect what is left before modules are taken apart: locks of files look for them."""
    gc.unfreeze()
