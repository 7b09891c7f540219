"""Commands as people type them, many wrong on purpose: each ends as it should, and changes no file that was there.

``commands.txt`` has one a line, after the status that it ends with: 0, or 2 with one line that says what is wrong.
"""

import gc
import importlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.workplace import make_workplace
from tests.forked import forked
from vit.__main__ import main
from vit.commands import fit
from vit.runs.run_pictures import RunPictures

LINES = Path(__file__).with_name("commands.txt").read_text().splitlines()
COMMANDS = [line.split(" ", 1) for line in LINES if line and not line.startswith("#")]
RUNS = {
    "digits": "train.py fit --config digits --trainer.max_steps 2 --trainer.limit_test_batches 0",
    "finetune": "train.py fit --config finetune --data.root PHOTOS/photos --trainer.max_steps 2 "
    "--trainer.limit_test_batches 0",
}
# What these commands import when they need it, beside what all do.
IMPORTED = ("sklearn.cluster", "vit.analysis", "vit.commands.explain", "vit.features")
LONGEST = 600  # characters of the line of an error
SECONDS = 120  # after which a command hangs: --trust takes half a minute on two quiet cores


def type_command(command: str) -> None:
    """Run a command in this process, as the shell runs it in its own."""
    program, *arguments = shlex.split(command)
    sys.argv = [program, *arguments]
    warnings.resetwarnings()  # pytest makes errors of them; Python hides these:
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    if program == "train.py":
        fit.main(arguments)
    else:
        main([*{"vit": [], "vit.explain": ["explain"], "vit.analysis": ["analysis"]}[program], *arguments])


def answer(command: str, output: Path) -> tuple[int, str]:
    """Return the status and the output of a command that is run in a copy of this process."""
    output.unlink(missing_ok=True)
    process = forked(output, type_command, command)
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        pytest.fail(f"no end after {SECONDS} s: {command}\n{output.read_text()}")
    return process.exitcode, output.read_text(errors="replace")


def files_below(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the time of each file, which tell whether it changed."""
    found = {}
    for path, _, names in os.walk(folder):
        for file in (Path(path, name) for name in names):
            status = file.lstat()
            found[file] = (status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # or each copy would write to all pages of memory when it collects
    folder = tmp_path_factory.mktemp("workplace")
    make_workplace(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(RunPictures, "_draw_curves", lambda *_: None)  # takes longer than the training
        patch.setattr(RunPictures, "_draw_images", lambda *_: None)
        for command in RUNS.values():
            status, printed = answer(command, tmp_path_factory.getbasetemp() / "output.txt")
            assert status == 0, printed
        yield folder


@pytest.mark.parametrize(("status", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_command_ends_as_it_should_and_changes_no_file_that_was_there(workplace, tmp_path, status, command):
    before, folders = files_below(workplace), {*workplace.glob("**/")}
    found, printed = answer(command, tmp_path / "output.txt")
    after = files_below(workplace)
    for new in after.keys() - before.keys():  # each command finds the same files
        new.unlink()
    for folder in sorted((path for path in workplace.glob("**/") if path not in folders), reverse=True):
        folder.rmdir()
    assert "Traceback" not in printed, printed
    assert "Warning: " not in printed, printed
    assert found == int(status), printed
    if found and " " in command:  # alone, a program prints what it can do
        lines = [line for line in printed.splitlines() if line.startswith("error: ")]
        assert lines == printed.splitlines()[-1:], printed
        assert len(lines[0]) <= LONGEST
    assert {file: after.get(file) for file in before} == before
