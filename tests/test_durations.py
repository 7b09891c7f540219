import json
from types import SimpleNamespace

import pytest

from tests import durations
from tests.durations import FILE, IN_MAKE_TEST, Measurement, mark


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    return tmp_path / "durations.json"


@pytest.mark.parametrize(
    ("test", "marks"),
    [
        ("tests/test_a.py::test_of_a_tenth[case]", ["medium"]),
        ("tests/test_a.py::test_of_half_a_second", ["medium", "long"]),
        ("tests/test_a.py::test_of_two_seconds", ["medium", "long", "slow"]),
        ("tests/test_a.py::test_that_is_new", []),
    ],
)
def test_a_test_is_marked_by_what_was_measured(test, marks, file):
    seconds = {"test_of_a_tenth": 0.1, "test_of_half_a_second": 0.5, "test_of_two_seconds": 2.0}
    file.write_text(json.dumps({f"tests/test_a.py::{name}": value for name, value in seconds.items()}))
    found = []
    mark([SimpleNamespace(nodeid=test, add_marker=found.append)])
    assert found == marks


def test_trainings_by_two_processes_are_part_of_make_test_and_not_of_test_fast(file):
    for test in IN_MAKE_TEST:
        file.write_text(json.dumps({test: 5.0}))
        found = []
        mark([SimpleNamespace(nodeid=test, add_marker=found.append)])
        assert found == ["medium", "slow"]
        path, _, name = test.partition("::")
        assert f"def {name}(" in (FILE.parents[1] / path).read_text(encoding="utf-8")


def test_the_file_holds_the_mean_over_the_cases_of_all_processes_and_no_fast_test(file):
    measurement = Measurement()
    measurement.seconds = {"t.py::test_a[1]": 0.1, "t.py::test_b": 0.04}
    measurement.pytest_testnodedown(SimpleNamespace(workeroutput={"seconds": {"t.py::test_a[2]": 0.4}}))
    measurement.pytest_testnodedown(SimpleNamespace())  # a process that crashed
    measurement.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))
    assert json.loads(file.read_text()) == {"t.py::test_a": 0.25}


def test_a_process_that_runs_tests_hands_its_seconds_on_and_writes_nothing(file):
    measurement, config = Measurement(), SimpleNamespace(workeroutput={})
    measurement.seconds = {"t.py::test_a": 0.5}
    measurement.pytest_sessionfinish(SimpleNamespace(config=config))
    assert config.workeroutput == {"seconds": {"t.py::test_a": 0.5}}
    assert not file.exists()


def test_the_file_names_tests_that_exist():
    missing = {name.partition("::")[0] for name in json.loads(FILE.read_text())}
    assert not [name for name in missing if not (FILE.parents[1] / name).exists()]
