"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Work on one core: for models as small as here, threads cost more than they gain."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that copy their process, then with those that have slow tests.

    A copy cannot train once some test before it had autograd start threads. At the end no worker waits for a slow test.
    """
    slow = {item.module for item in items if item.get_closest_marker("slow") and isinstance(item, pytest.Function)}
    copying = {module for module in slow if {"forked", "torture"} & vars(module).keys()}
    items.sort(
        key=lambda item: (getattr(item, "module", None) not in copying, getattr(item, "module", None) not in slow)
    )
