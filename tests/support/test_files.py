"""Files that are written whole or not at all, what a kill leaves, and what is said before anything is written."""

import errno
import os
from pathlib import Path

import pytest

from tests.forked import forked
from vit.support.files import HOST, UnwritableError, check_outputs, plain_message, replacing, sweep, unused_folder


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


def test_two_files_whose_names_begin_alike_are_written_at_once(tmp_path):
    name = "a model of a long name, as people write them"
    with replacing(tmp_path / f"{name}.bin") as weights, replacing(tmp_path / f"{name}.xml") as graph:
        weights.write_text("weights")
        graph.write_text("graph")
    assert [(tmp_path / f"{name}.{suffix}").read_text() for suffix in ("bin", "xml")] == ["weights", "graph"]


def test_a_name_of_the_greatest_length_is_written(tmp_path):
    path = tmp_path / f"{'é' * 125}.html"  # 255 bytes
    with replacing(path) as unfinished:
        unfinished.write_text("whole")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_write_that_fails_names_the_file_the_reason_and_a_remedy(tmp_path, monkeypatch):
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    def write() -> None:
        with replacing(tmp_path / "page.html") as unfinished:
            unfinished.write_text("half")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwritableError) as failed:
        write()
    line = f"cannot write {tmp_path}/page.html (No space left on device): free some space, or name a place on another"
    assert str(failed.value).startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_are_free_are_left_untouched(tmp_path):
    check_outputs([tmp_path / "a.csv", tmp_path / "new/folder/b.csv"], overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_or_a_device_is_no_output(tmp_path, overwrite):
    with pytest.raises(ValueError, match="is a folder: name a file"):
        check_outputs([tmp_path], overwrite)
    with pytest.raises(ValueError, match="/dev/null is no file on a disk: name another one"):
        check_outputs([Path("/dev/null")], overwrite)


def test_a_file_or_a_link_that_exists_is_replaced_only_on_request(tmp_path):
    (tmp_path / "link.csv").symlink_to("gone.csv")
    (tmp_path / "file.csv").touch()
    for path in (tmp_path / "link.csv", tmp_path / "file.csv"):
        with pytest.raises(ValueError, match=f"{path.name} exists: add --overwrite, or name another file"):
            check_outputs([tmp_path / "free.csv", path], overwrite=False)
        check_outputs([path], overwrite=True)


@pytest.mark.parametrize(
    ("number", "reason", "remedy"),
    [
        (errno.EACCES, "Permission denied", "name another place, or change its permissions"),
        (errno.EROFS, "Read-only file system", "name a place on another disk"),
        (errno.ENOSPC, "No space left on device", "free some space, or name a place on another disk"),
        (errno.EIO, "Input/output error", "name another place"),
    ],
)
def test_a_place_is_tried_and_not_asked_for_its_permissions(tmp_path, monkeypatch, number, reason, remedy):
    def refuse(**options: object) -> None:
        raise OSError(number, reason)

    monkeypatch.setattr("vit.support.files.TemporaryFile", refuse)
    with pytest.raises(UnwritableError) as failed:
        check_outputs([tmp_path / "f.csv"], overwrite=False)
    assert str(failed.value) == f"cannot write {tmp_path}/f.csv ({reason}): {remedy}"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "a b"), "a b: permission denied: name another place, or"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "x: no such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on device: free some space"),
        (OSError("image is damaged"), "image is damaged"),
        (ValueError("mine"), "mine"),
    ],
)
def test_the_number_of_an_error_of_the_system_is_left_out(error, line):
    assert plain_message(error).startswith(line)


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "last.ckpt"
    for content in ("first", "second"):
        with replacing(path) as unfinished:
            unfinished.mkdir()
            (unfinished / content).touch()

    def write_a_third_one():
        with replacing(path) as unfinished:
            unfinished.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_a_third_one()
    assert [file.name for file in path.iterdir()] == ["second"]
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_an_unused_folder_is_the_named_one_or_the_first_free_number(tmp_path):
    name = str(tmp_path / "made")
    assert unused_folder(name, overwrite=False) == tmp_path / "made"
    (tmp_path / "made").mkdir()  # empty
    assert unused_folder(name, overwrite=False) == tmp_path / "made"
    (tmp_path / "made/.hidden").touch()
    (tmp_path / "made_1").touch()  # a file
    assert unused_folder(name, overwrite=False) == tmp_path / "made_2"
    assert unused_folder(name, overwrite=True) == tmp_path / "made"
