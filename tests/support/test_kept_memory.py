import subprocess
import sys

import pytest

from vit.support.kept_memory import keep_freed_memory

# Page faults of ten tensors of 40 MB (10,000 pages), one after the other, after twenty others.
FAULTS = """
import resource, torch
from vit.support.kept_memory import keep_freed_memory
torch.set_num_threads(1)
{call}
for index in range(30):
    torch.ones(10_000_000)
    if index == 19:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call):
    command = [sys.executable, "-c", FAULTS.format(call=call)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps memory by request")
def test_freed_memory_is_taken_again_without_page_faults():
    assert faults("keep_freed_memory()") < 100 < faults("")


def test_another_allocator_stays_as_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not keep_freed_memory()
