"""The cache of decoded image files."""

import os
import time
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from vit.data import decoded_cache
from vit.data.decoded_cache import load_decoded as load
from vit.data.decoded_cache import readable_files
from vit.data.image_files import FIRST_FRAME, ImageFiles
from vit.support.files import cache_folder


@pytest.fixture
def files(write_image):
    """Five images of 3x5."""
    return ImageFiles([write_image(f"{number}.png", (3, 5)) for number in range(5)], [0] * 5, (3, 5), in_channels=3)


def load_decoded(files, num_workers):
    """The images alone, where none is damaged."""
    images, of_images = load(files, num_workers)
    assert of_images is files
    return images


def decoded(files):
    return torch.stack([files[number][0] for number in range(len(files))]).tolist()


def spoil(path):
    """Replace the content of a file, but not its size and modification time."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_images_are_decoded_in_the_order_of_the_files(files, num_workers, monkeypatch):
    monkeypatch.setattr(decoded_cache, "DECODE_BATCH", 2)
    files.paths.reverse()
    images = load_decoded(files, num_workers)
    assert images.dtype == torch.uint8
    assert images.tolist() == decoded(files)


def test_a_set_is_decoded_only_once(files, monkeypatch):
    expected = decoded(files)
    load_decoded(files, num_workers=0)
    monkeypatch.setattr(decoded_cache, "_decode_all", None)  # no second time
    assert load_decoded(files, num_workers=0).tolist() == expected


def test_a_set_is_decoded_again_where_a_tool_kept_size_and_time_of_a_file_that_it_changed(files):
    load_decoded(files, num_workers=0)
    spoil(files.paths[1])
    with pytest.raises(ValueError, match=f"cannot read image {files.paths[1]}"):
        load_decoded(files, num_workers=0)


def test_a_file_that_can_be_read_again_comes_back(files, monkeypatch):
    content, kept = files.paths[1].read_bytes(), decoded_cache.fingerprint(files)
    monkeypatch.setattr(decoded_cache, "fingerprint", lambda _: kept)  # a disk may fail and answer again unnoticed
    spoil(files.paths[1])
    assert len(load(files, 0, skip_damaged=True)[1]) == 4
    assert len(load(files, 0, skip_damaged=True)[1]) == 4
    files.paths[1].write_bytes(content)
    assert len(load(files, 0, skip_damaged=True)[1]) == 5


def test_a_set_is_decoded_again_where_a_file_grew(files, write_image):
    load_decoded(files, num_workers=0)
    status = files.paths[1].stat()
    write_image("larger.png", (3, 5), mode="RGBA").rename(files.paths[1])
    os.utime(files.paths[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load_decoded(files, num_workers=0).tolist() == decoded(files)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_set_is_decoded_again_where_a_file_of_the_same_size_is_newer_or_renamed(files, tmp_path, renamed):
    load_decoded(files, num_workers=0)
    spoil(files.paths[1])
    if renamed:
        files.paths[1] = files.paths[1].rename(tmp_path / "renamed.png")
    else:
        os.utime(files.paths[1])
    with pytest.raises(ValueError, match=f"cannot read image {files.paths[1]}"):
        load_decoded(files, num_workers=0)


def test_a_set_is_decoded_again_where_a_file_was_added(files, write_image):
    load_decoded(files, num_workers=0)
    more = ImageFiles([*files.paths, write_image("5.png", (3, 5))], [0] * 6, (3, 5), in_channels=3)
    assert load_decoded(more, num_workers=0).tolist() == decoded(more)


@pytest.mark.parametrize(("image_size", "in_channels"), [((5, 3), 3), ((3, 5), 1)])
def test_another_size_or_number_of_channels_is_another_set(files, image_size, in_channels):
    load_decoded(files, num_workers=0)
    other = ImageFiles(files.paths, files.labels, image_size, in_channels)
    assert load_decoded(other, num_workers=0).tolist() == decoded(other)


@pytest.mark.parametrize("damage", [slice(0), slice(50), slice(-1), 0, 8, 41, 67, -225, -1], ids=str)
def test_an_array_that_is_truncated_or_has_a_flipped_byte_is_decoded_again(files, damage):
    load_decoded(files, num_workers=0)
    (array,) = cache_folder().iterdir()
    whole = array.read_bytes()
    damaged = bytearray(whole)
    if isinstance(damage, slice):
        damaged = damaged[damage]
    else:
        damaged[damage] ^= 255
    array.write_bytes(damaged)
    assert load_decoded(files, num_workers=0).tolist() == decoded(files)
    assert array.read_bytes() == whole


def test_an_interrupted_write_leaves_nothing_behind(files, monkeypatch):
    def interrupted(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(decoded_cache, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_decoded(files, num_workers=0)
    assert list(cache_folder().iterdir()) == []


def test_an_array_appears_under_its_name_only_when_it_is_whole(files, monkeypatch):
    seen = []

    def watched(tensors, path, metadata):
        save_file(tensors, path, metadata)
        seen.extend(cache_folder().glob("*.safetensors"))

    save_file = decoded_cache.save_file
    monkeypatch.setattr(decoded_cache, "save_file", watched)
    load_decoded(files, num_workers=0)
    assert seen == []
    assert len(list(cache_folder().glob("*.safetensors"))) == len(list(cache_folder().iterdir())) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_after_a_failed_write_the_run_continues_and_no_file_is_left(files, monkeypatch, capsys, error):
    def full(_tensors, path, **_):
        path.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(decoded_cache, "save_file", full)
    assert load_decoded(files, num_workers=0).tolist() == decoded(files)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"could not keep the decoded images in {cache_folder()}: No space left on device"
    assert list(cache_folder().iterdir()) == []


def test_without_a_cache_folder_the_run_continues(files, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_decoded(files, num_workers=0).tolist() == decoded(files)
    assert f"could not keep the decoded images in {tmp_path / 'file/vit'}: " in capsys.readouterr().out


both = pytest.mark.parametrize("read", [load, readable_files])


def damaged(files, *numbers):
    for number in numbers:
        files.paths[number].write_text("no image")
    return "; ".join(f"cannot read image {files.paths[number]}: it is no image" for number in numbers)


@both
@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_unreadable_images_are_named_and_nothing_is_cached(read, files, num_workers, monkeypatch):
    monkeypatch.setattr(decoded_cache, "DECODE_BATCH", 2)
    messages = damaged(files, 1, 3)
    with pytest.raises(ValueError, match=f"^{messages}: replace or delete the files, or leave them out by"):
        read(files, num_workers)
    assert not cache_folder().exists()


@pytest.mark.parametrize("missing", [(0,), (1, 3), (2, 3, 4)])
def test_images_stay_beside_their_files_where_damaged_ones_are_skipped(files, missing, monkeypatch, capsys):
    monkeypatch.setattr(decoded_cache, "DECODE_BATCH", 2)
    files.labels = [0, 1, 2, 3, 4]
    kept = [number for number in range(5) if number not in missing]
    expected = [decoded(files)[number] for number in kept]
    messages = damaged(files, *missing)
    for _ in range(2):  # the second time from the cache
        images, of_images = load(files, 0, skip_damaged=True)
        assert images.tolist() == expected
        assert (of_images.labels, of_images.paths) == (kept, [files.paths[number] for number in kept])
        said = "\n  ".join([f"left out {len(missing)} of 5 files:", *messages.split("; ")])
        assert f"{said}\n" in capsys.readouterr().out


def test_of_files_that_are_not_kept_in_memory_the_readable_ones_are_found_once(files, monkeypatch, capsys):
    files.labels = [0, 1, 2, 3, 4]
    messages = damaged(files, 1, 3)
    for _ in range(2):
        kept = readable_files(files, 0, skip_damaged=True)
        assert (kept.labels, kept.paths) == ([0, 2, 4], [files.paths[number] for number in (0, 2, 4)])
        said = "\n  ".join(["left out 2 of 5 files:", *messages.split("; ")])
        assert capsys.readouterr().out.endswith(f"{said}\n")
        monkeypatch.setattr(decoded_cache, "_decoded", None)


@both
def test_a_run_that_skips_damaged_files_hides_them_from_no_other(read, files):
    messages = damaged(files, 1)
    read(files, 0, skip_damaged=True)
    with pytest.raises(ValueError, match=f"^{messages}: replace"):
        read(files, 0)


@both
def test_another_limit_of_pixels_is_another_check(read, files):
    read(files, 0)
    files.max_pixels = 14
    with pytest.raises(ValueError, match=r"0.png: it has 5 x 3 pixels, more than max_pixels \(14\)"):
        read(files, 0)


@both
def test_the_name_of_a_file_may_be_no_text(read, files):
    files.paths[1] = files.paths[1].rename(files.paths[1].with_name("\udcff.png"))
    read(files, 0)
    files.paths[1].write_text("no image")
    read(files, 0, skip_damaged=True)
    read(files, 0, skip_damaged=True)
    assert files.unreadable == {files.paths[1]: f"cannot read image {files.paths[1]}: it is no image"}


@both
def test_notes_on_images_are_kept_with_them(read, files):
    frames = [Image.new("RGB", (5, 3), (level, 0, 0)) for level in (0, 99)]
    frames[0].save(files.paths[2], save_all=True, append_images=frames[1:])
    for _ in range(2):
        again = replace(files, notes={})
        read(again, 0)
        assert again.notes == {files.paths[2]: [FIRST_FRAME]}


@both
def test_a_repaired_file_is_found(read, files, write_image):
    damaged(files, 1)
    read(files, 0, skip_damaged=True)
    write_image("1.png", (3, 5))
    result = read(files, 0)
    assert (result if read is readable_files else result[1]) is files


@both
def test_where_no_file_is_damaged_skipping_changes_nothing(read, files, capsys):
    read(files, 0, skip_damaged=True)
    (kept,) = cache_folder().iterdir()
    before = kept.stat().st_ino
    capsys.readouterr()
    read(files, 0)
    assert [path.stat().st_ino for path in cache_folder().iterdir()] == [before]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", ["", "{", '{"a": "b"}'])
def test_a_damaged_list_of_damaged_files_is_made_again(files, content):
    damaged(files, 1)
    readable_files(files, 0, skip_damaged=True)
    (kept,) = cache_folder().iterdir()
    whole = kept.read_bytes()
    kept.write_text(content)
    assert len(readable_files(files, 0, skip_damaged=True)) == 4
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("position", ["cannot", "no image"])
def test_an_array_whose_list_of_damaged_files_changed_is_decoded_again(files, position):
    damaged(files, 1)
    load(files, 0, skip_damaged=True)
    (array,) = cache_folder().iterdir()
    whole = array.read_bytes()
    assert position.encode() in whole
    array.write_bytes(whole.replace(position.encode(), position.upper().encode()))
    load(files, 0, skip_damaged=True)
    assert array.read_bytes() == whole


def test_decoding_draws_nothing_from_the_global_generator(files):
    before = torch.get_rng_state()
    load_decoded(files, num_workers=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_cache_is_under_xdg_cache_home_or_else_under_home(cache_home, tmp_path, monkeypatch):
    assert cache_folder() == cache_home / "vit"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache/vit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache/vit"


def test_writing_an_array_deletes_those_not_read_for_thirty_days(files, write_image):
    load_decoded(files, num_workers=0)
    (used,) = cache_folder().iterdir()
    old = {
        cache_folder() / name
        for name in ("old.safetensors", "old.json", "old.12.tmp", ".old.safetensors.12.unfinished")
    }
    others = {cache_folder() / name for name in ("new.safetensors", ".new.safetensors.12.unfinished", "old.txt")}
    for path in old | others:
        path.touch()
    long_ago = time.time() - 31 * 24 * 3600
    for path in (used, *old, cache_folder() / "old.txt"):
        os.utime(path, (long_ago, long_ago))
    recent = time.time() - 29 * 24 * 3600
    os.utime(cache_folder() / "new.safetensors", (recent, recent))
    load_decoded(files, num_workers=0)  # reads the array, which counts as use
    other = ImageFiles([write_image("other.png", (3, 5))], [0], (3, 5), in_channels=3)
    load_decoded(other, num_workers=0)
    kept = set(cache_folder().iterdir())
    assert {used} | others < kept
    assert not old & kept


def test_another_version_of_the_decoder_is_another_array(files, monkeypatch):
    before = decoded_cache.fingerprint(files)
    monkeypatch.setattr(decoded_cache, "DECODER_VERSION", decoded_cache.DECODER_VERSION + 1)
    assert decoded_cache.fingerprint(files) != before
