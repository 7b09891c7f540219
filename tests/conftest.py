"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Work on one core: for models as small as here, threads cost more than they gain."""
    torch.set_num_threads(1)
