"""Ctrl-C at any moment, and outputs that cannot be written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import forked
from vit.support.interrupts import STOPPED, starting, stoppable

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard():
    """A worker of pytest-xdist may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def end_of(function, tmp_path):
    """Run a function in a copy of this process; return its status and what it printed."""
    process = forked(tmp_path / "printed.txt", function)
    process.join()
    return process.exitcode, (tmp_path / "printed.txt").read_text()


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_while_a_program_starts_ctrl_c_ends_it_at_once(tmp_path):
    def importing() -> None:
        with starting():
            try:
                press_ctrl_c()
            except BaseException:
                print("swallowed")

    assert end_of(importing, tmp_path) == (130, f"{STOPPED}\n")


def test_a_worker_that_is_copied_from_a_starting_program_says_nothing(tmp_path):
    def importing() -> None:
        with starting():
            if os.fork() == 0:
                press_ctrl_c()
            os.wait()

    assert end_of(importing, tmp_path) == (0, "")


def test_at_work_ctrl_c_lets_the_command_tidy_up_and_ends_it_in_one_line(capsys):
    tidied = []

    def work() -> None:
        try:
            press_ctrl_c()
        finally:
            tidied.append("yes")

    with pytest.raises(SystemExit) as stopped, stoppable():
        work()
    assert (stopped.value.code, tidied, capsys.readouterr().err) == (130, ["yes"], f"{STOPPED}\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("other", [ImportError("numpy.core failed to import"), SystemExit(1)])
def test_what_a_library_makes_of_ctrl_c_is_still_ctrl_c(other, capsys):
    def work() -> None:
        try:
            press_ctrl_c()
        except KeyboardInterrupt:
            raise other from None

    with pytest.raises(SystemExit) as stopped, stoppable():
        work()
    assert (stopped.value.code, capsys.readouterr().err) == (130, f"{STOPPED}\n")


def test_where_python_would_ignore_it_ctrl_c_ends_the_command(tmp_path):
    class Destroyed:
        def __del__(self) -> None:
            press_ctrl_c()

    def work() -> None:
        with stoppable():
            Destroyed()
            print("went on")

    assert end_of(work, tmp_path) == (130, f"{STOPPED}\n")


def test_of_processes_that_train_together_the_first_one_speaks(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as stopped, stoppable():
        press_ctrl_c()
    assert (stopped.value.code, capsys.readouterr().err) == (130, "")


def test_errors_without_ctrl_c_pass_through():
    with pytest.raises(ValueError, match="mine"), stoppable():
        raise ValueError("mine")


def test_a_process_in_the_background_goes_on_ignoring_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with starting(), stoppable():
        press_ctrl_c()


def with_output(path, function, tmp_path):
    """Run a function whose output goes to a file descriptor or a file; return its status and its errors."""

    def run() -> None:
        os.dup2(path if isinstance(path, int) else os.open(path, os.O_WRONLY), 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        with starting():
            function()

    return end_of(run, tmp_path)


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at the end", "in between"])
def test_a_reader_that_is_gone_ends_the_program_in_silence(lines, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    assert with_output(writer, lambda: print("line\n" * lines), tmp_path) == (141, "")
    os.close(writer)


def test_another_broken_pipe_is_an_error(tmp_path):
    def work() -> None:
        with pytest.raises(BrokenPipeError), starting():
            raise BrokenPipeError

    assert end_of(work, tmp_path) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_on_a_full_disk_is_one_line(tmp_path):
    status, printed = with_output("/dev/full", lambda: print("line"), tmp_path)
    assert (status, printed) == (2, "error: the output cannot be written (No space left on device)\n")


@pytest.mark.parametrize("program", [["-m", "vit"], [str(ROOT / "train.py")]], ids=["python -m vit", "train.py"])
def test_ctrl_c_while_torch_is_imported_is_one_line(program, tmp_path):
    (tmp_path / "torch.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, *program, "fit", "--config", "digits"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"{STOPPED}\n")
