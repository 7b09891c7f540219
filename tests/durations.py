"""How long the tests take, as measured: what ``make test`` and ``make test-fast`` leave out.

``durations.json`` holds the mean seconds of each test function over its cases, and ``MARKS`` from how many seconds on a
test has a mark; one that the file lacks has none. ``make durations`` measures all tests, which wants a machine without
other work, and writes the file anew.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
MARKS = {"medium": 0.07, "long": 0.3, "slow": 2.0}  # seconds
# ``make test`` trains by two processes as well, although that takes longer.
IN_MAKE_TEST = {
    "tests/commands/test_distributed.py::test_two_processes_train_several_labels_as_one_process_does",
    "tests/commands/test_distributed.py::test_the_command_of_the_documentation_for_sharded_training_runs_on_two_processes_of_a_cpu",
    "tests/commands/test_distributed.py::test_a_signal_to_one_of_two_processes_stops_both_and_they_go_on_as_if_it_had_not_come",
    "tests/commands/test_shards.py::test_two_processes_train_on_shards_as_one_does",
    "tests/commands/test_slurm.py::test_the_signal_to_either_process_queues_the_job_again_once_and_the_next_start_ends_as_if_it_had_not_come",
    "tests/commands/test_shards.py::test_an_epoch_goes_on_in_another_number_of_processes_with_the_images_that_are_left",
}


def function_of(test: str) -> str:
    """Return the function that a test is a case of.

    >>> function_of("tests/test_imports.py::test_a_name[vit-1]")
    'tests/test_imports.py::test_a_name'
    """
    return test.partition("[")[0]


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests by their seconds."""
    durations = json.loads(FILE.read_text(encoding="utf-8"))
    for item in items:
        function = function_of(item.nodeid)
        seconds = durations.get(function, 0.0)
        for name in (name for name, least in MARKS.items() if seconds >= least):
            if name != "long" or function not in IN_MAKE_TEST:
                item.add_marker(name)


class Measurement:
    """Measures all tests of a session, in each process that runs some, and writes the file at its end."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # of each test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        before = time.perf_counter()
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - before
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what another process has measured."""
        self.seconds |= getattr(node, "workeroutput", {}).get("seconds", {})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or hand the seconds to the process that does."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["seconds"] = self.seconds
            return
        total, cases = Counter(), Counter()
        for test, seconds in self.seconds.items():
            total[function_of(test)] += seconds
            cases[function_of(test)] += 1
        means = {function: round(total[function] / cases[function], 2) for function in sorted(total)}
        durations = {function: seconds for function, seconds in means.items() if seconds >= min(MARKS.values())}
        FILE.write_text(json.dumps(durations, indent=0) + "\n", encoding="utf-8")
