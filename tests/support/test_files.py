"""Files that are written whole or not at all, and what a kill leaves."""

import os

import pytest

from tests.forked import forked
from vit.support.files import HOST, replacing, sweep


def write_and_die(path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("half")
        os._exit(9)  # as after SIGKILL: nothing is tidied up


@pytest.fixture
def killed(tmp_path):
    """The unfinished file of a process that was killed, two folders down."""
    path = tmp_path / "version_0/checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    path.write_text("whole")
    forked(tmp_path / "output.txt", write_and_die, path).join()
    (unfinished,) = path.parent.glob(".*.unfinished")
    return unfinished


def test_a_kill_leaves_the_file_before_and_the_next_start_sweeps_the_rest(killed, tmp_path):
    assert (killed.parent / "last.ckpt").read_text() == "whole"
    sweep(tmp_path)
    assert [path.name for path in killed.parent.iterdir()] == ["last.ckpt"]


def test_files_of_a_process_that_runs_or_of_another_machine_stay(tmp_path):
    names = [f".last.ckpt.{HOST}.{os.getpid()}.unfinished", ".last.ckpt.elsewhere.1234567.unfinished", "my.unfinished"]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_an_error_leaves_the_file_before_and_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("whole")

    def stopped() -> None:
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "whole"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
