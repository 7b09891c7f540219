"""Freed memory that a training keeps."""

import platform
import resource

import pytest
import torch

from vit.training import memory
from vit.training.memory import keep_freed_memory

GLIBC = platform.libc_ver()[0] == "glibc"


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
def test_pages_of_a_freed_block_are_there_when_it_is_taken_again():
    assert keep_freed_memory()
    faults_of_a_block()
    assert faults_of_a_block() < 20


def faults_of_a_block() -> int:
    """Return the page faults of a block of 64 MiB that is filled and freed; there are 16,384 pages in it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**26, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda *_: pytest.fail("it was loaded"))
    assert not keep_freed_memory()
