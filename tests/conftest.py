"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Work on one core: for models as small as here, threads cost more than they gain."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that have slow tests, so that in the end no worker waits for one."""
    slow = {item.module for item in items if item.get_closest_marker("slow") and isinstance(item, pytest.Function)}
    items.sort(key=lambda item: getattr(item, "module", None) not in slow)
