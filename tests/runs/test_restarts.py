"""Where processes that torchrun starts again meet."""

import os

import pytest

from vit.runs.restarts import use_new_port


@pytest.mark.parametrize(("restarts", "expected"), [("0", ("29500", "True")), ("2", ("29502", "False"))])
def test_after_a_restart_it_is_another_port_than_that_of_the_store_with_the_old_addresses(
    restarts, expected, monkeypatch
):
    names = ("TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    for name, value in zip(names, (restarts, "29500", "True"), strict=True):
        monkeypatch.setenv(name, value)
    use_new_port()
    assert tuple(os.environ[name] for name in names[1:]) == expected
