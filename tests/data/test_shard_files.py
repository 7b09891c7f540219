"""Image files in tar shards: how they are found, read and written."""

import json
import os
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.data.shard_sets import picture, write_tar
from vit.data.image_files import decode
from vit.data.shard_files import (
    INDEX_SUFFIX,
    Members,
    describe_shard,
    digest_of,
    expand,
    read_index,
    scan,
    write_shard,
)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("a-{08..10}.tar", ["a-08.tar", "a-09.tar", "a-10.tar"]),
        ("a-{3..3}.tar", ["a-3.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
    ],
)
def test_braces_stand_for_ranges_and_lists_as_in_a_shell(pattern, names):
    assert expand(pattern) == names


@pytest.mark.parametrize("pattern", ["a-{0..3.tar", "a-0..3}.tar", "a-{0..{1..2}}.tar", "a-{0...3}.tar", "{}.tar"])
def test_a_brace_that_is_not_closed_or_holds_no_range_is_refused(pattern):
    with pytest.raises(ValueError, match=r"write a range as train-{000000\.\.000127}\.tar"):
        expand(pattern)


def test_a_range_that_counts_down_is_refused():
    with pytest.raises(ValueError, match=r"^'a-{127\.\.000}\.tar' counts down from 127 to 000: write the smaller numb"):
        expand("a-{127..000}.tar")


@pytest.mark.parametrize("label", [["a", "b"], 1.5, True, {"name": "a"}])
def test_a_class_is_a_name_or_a_number(label, tmp_path):
    files = [("1.png", picture(1)), ("1.json", json.dumps({"cls": label}).encode())]
    with pytest.raises(ValueError, match=r'1\.json has the class .*: write a name or a whole number, as {"cls": 3}$'):
        scan(write_tar(tmp_path / "a.tar", files))


def test_the_images_of_a_tar_are_found_with_the_class_that_stands_beside_them(tmp_path):
    files = [
        ("one/000.jpg", picture(1, ".jpg")),
        ("one/000.cls", b" 7\n"),
        ("one/001.cls", b"ant"),
        ("one/001.PNG", picture(2)),
        ("002.webp", picture(3, ".webp")),
        ("002.json", json.dumps({"cls": 5, "label": 6, "text": "x"}).encode()),
        ("003.json", json.dumps({"label": "bee"}).encode()),
        ("003.png", picture(4)),
        ("004.txt", b"no image"),
        ("005.png", picture(5)),
        ("005.json", b"{}"),
        ("006.png", picture(6)),
        ("006.json", b'{"cls": null, "label": null}'),
    ]
    index = scan(write_tar(tmp_path / "a.tar", files))
    assert index["name"].tolist() == [b"one/000.jpg", b"one/001.PNG", b"002.webp", b"003.png", b"005.png", b"006.png"]
    assert index["class"].tolist() == [b"7", b"ant", b"5", b"bee", b"", b""]
    content = (tmp_path / "a.tar").read_bytes()
    assert [content[row["offset"] :][: row["size"]] for row in index] == [
        content for name, content in files if name.lower().endswith(("jpg", "png", "webp"))
    ]


def test_an_image_is_read_from_the_middle_of_a_shard(tmp_path):
    shard = write_tar(tmp_path / "a.tar", [(f"{number}.png", picture(number)) for number in range(5)])
    members = Members([shard], np.zeros(5, dtype=np.int32), scan(shard))
    assert [decode(member, None, 1).unique().tolist() for member in members] == [[0], [1], [2], [3], [4]]
    assert members.names == [str(member) for member in members] == [f"{shard}/{number}.png" for number in range(5)]
    assert members[np.array([3, 1])].names == [members.names[3], members.names[1]]
    assert (members[2].suffix, members[2].name, members[2].parent) == (".png", "2.png", shard)
    assert members[2].exists()
    assert members[2].is_file()


def test_the_formats_of_folders_are_those_of_shards(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (16, 16), (250, 0, 0)).save(tmp_path / "a.heic")
    shard = write_tar(tmp_path / "a.tar", [("a.heic", (tmp_path / "a.heic").read_bytes())])
    assert decode(Members([shard], np.zeros(1, dtype=np.int32), scan(shard))[0], None, 3).shape == (3, 16, 16)


@pytest.fixture
def written(tmp_path):
    """A shard of five images, and what is said of it."""
    for number in range(5):
        (tmp_path / f"{number}.PNG").write_bytes(picture(number))
    files = [(f"{number:03}", tmp_path / f"{number}.PNG", number % 2) for number in range(5)]
    return tmp_path / "train-000000.tar", write_shard(tmp_path / "train-000000.tar", files), files


def test_a_written_shard_is_a_tar_in_the_layout_of_webdataset(written):
    shard, said, _ = written
    with tarfile.open(shard) as tar:
        names = tar.getnames()
        contents = [tar.extractfile(name).read() for name in names]
    assert names == [f"{number:03}.{suffix}" for number in range(5) for suffix in ("png", "cls")]
    assert contents[::2] == [picture(number) for number in range(5)]
    assert contents[1::2] == [b"0", b"1", b"0", b"1", b"0"]
    assert said["images"] == 5
    assert said["bytes"] == shard.stat().st_size


def test_the_written_index_is_that_of_the_tar_with_digests(written):
    shard, *_ = written
    index, scanned = np.load(f"{shard}{INDEX_SUFFIX}"), scan(shard)
    for column in ("offset", "size", "class", "name"):
        assert index[column].tolist() == scanned[column].tolist()
    assert index["digest"].tolist() == [digest_of(picture(number)) for number in range(5)]
    assert index["crc32"].tolist() == [zlib.crc32(picture(number)) for number in range(5)]
    assert (scanned["digest"].tolist(), scanned["crc32"].tolist()) == ([0] * 5, [-1] * 5)


def test_names_that_tar_keeps_in_headers_of_their_own_are_found(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(9))
    shard = tmp_path / "a.tar"
    write_shard(shard, [(f"{'ä' * 90}_{number}", tmp_path / "a.png", None) for number in range(3)])
    index = np.load(f"{shard}{INDEX_SUFFIX}")
    assert index["offset"].tolist() == scan(shard)["offset"].tolist()
    assert decode(Members([shard], np.zeros(3, dtype=np.int32), index)[2], None, 1).unique().tolist() == [9]


def test_the_same_files_give_the_same_bytes(written, tmp_path):
    shard, said, files = written
    again = write_shard(tmp_path / "again.tar", files)
    assert again == said
    assert (tmp_path / "again.tar").read_bytes() == shard.read_bytes()
    assert describe_shard(shard) == said


def test_a_shard_without_an_index_or_with_other_bytes_is_not_written_yet(written, tmp_path):
    shard, *_ = written
    assert describe_shard(tmp_path / "none.tar") is None
    flip(shard)
    assert describe_shard(shard) is None
    shard.with_name(shard.name + INDEX_SUFFIX).unlink()
    assert describe_shard(shard) is None


def test_an_index_without_a_byte_counts_as_none(written):
    shard, *_ = written
    shard.with_name(shard.name + INDEX_SUFFIX).write_bytes(b"")
    assert describe_shard(shard) is None
    assert read_index(shard)["offset"].tolist() == scan(shard)["offset"].tolist()


def test_an_index_of_an_earlier_version_counts_as_none(written):
    shard, *_ = written
    path = shard.with_name(shard.name + INDEX_SUFFIX)
    np.save(path, np.load(path)[["offset", "size", "digest", "class", "name"]])  # as version 3
    assert describe_shard(shard) is None
    assert read_index(shard).tolist() == scan(shard).tolist()


@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_class_that_was_corrected_in_a_shard_is_read_although_its_index_is_older(written, is_indexed):
    shard, *_ = written
    index = shard.with_name(shard.name + INDEX_SUFFIX)
    if not is_indexed:
        index.unlink()
    assert read_index(shard)["class"].tolist() == [b"0", b"1", b"0", b"1", b"0"]
    digests = read_index(shard)[["digest", "crc32"]].tolist()
    with tarfile.open(shard) as tar:
        place = tar.getmember("002.cls").offset_data
    content = bytearray(shard.read_bytes())
    content[place : place + 1] = b"1"
    shard.write_bytes(content)
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 10**9))  # files written at once may have one time
    assert read_index(shard)["class"].tolist() == [b"0", b"1", b"1", b"1", b"0"]
    assert read_index(shard)[["digest", "crc32"]].tolist() == digests


def test_an_image_that_was_changed_in_a_shard_is_noticed_although_the_index_is_older(written):
    shard, *_ = written
    flip(shard)
    os.utime(shard, ns=(0, shard.stat().st_mtime_ns + 10**9))
    index = read_index(shard)
    with pytest.raises(ValueError, match="its bytes are not those that were written: copy the shard again"):
        Members([shard], np.zeros(5, dtype=np.int32), index)[2].open()


def flip(shard, number=2):
    """Change one byte of an image."""
    content = bytearray(shard.read_bytes())
    content[content.index(picture(number)) + 20] ^= 1
    shard.write_bytes(content)


def test_an_image_with_another_byte_is_named(written):
    shard, *_ = written
    flip(shard)
    members = Members([shard], np.zeros(5, dtype=np.int32), read_index(shard))
    decode(members[1], None, 1)
    with pytest.raises(ValueError, match=f"cannot read image {shard}/002.png: its bytes are not those"):
        decode(members[2], None, 1)


def test_a_tar_without_an_index_is_scanned_once(tmp_path, cache_home, monkeypatch):
    shard = write_tar(tmp_path / "a.tar", [("0.png", picture(0))])
    first = read_index(shard)
    monkeypatch.setattr("vit.data.shard_files.scan", None)
    assert read_index(shard).tolist() == first.tolist()
    assert len([*cache_home.rglob("*.npy")]) == 1


def test_a_changed_tar_is_scanned_again(tmp_path):
    shard = write_tar(tmp_path / "a.tar", [("0.png", picture(0))])
    assert len(read_index(shard)) == 1
    write_tar(shard, [(f"{number}.png", picture(number)) for number in range(30)])
    assert len(read_index(shard)) == 30


@pytest.mark.parametrize("cut", [300, 700, 1800, 2700])
def test_a_cut_shard_is_damaged(tmp_path, cut):
    shard = write_tar(tmp_path / "a.tar", [(f"{number}.png", picture(number)) for number in range(4)])
    shard.write_bytes(shard.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"cannot read the shard {shard} .*it is no whole, uncompressed tar"):
        read_index(shard)


def test_what_is_no_tar_is_damaged(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"a page that says 404\n" * 99)
    with pytest.raises(ValueError, match="it is no whole, uncompressed tar"):
        read_index(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            [("0.png", picture(0)), ("0.jpg", picture(1, ".jpg"))],
            "a.tar has two images of the name 0: keep one of them",
        ),
        ([("0.png", picture(0)), ("0.json", b"{3")], r'a.tar/0.json is no JSON .*: write it as {"cls": 3}$'),
        (
            [("0.png", picture(0)), ("in/1.crop.png", picture(1)), ("in/1.cls", b"1"), ("2.png", picture(2))],
            "a.tar has in/1.crop.png, in/1.cls, and no image of this name that is read before or after it: write it "
            "there, as in/1.jpg or in/1.png$",
        ),
        ([("0.png", picture(0)), ("1.crop.png", picture(1))], "a.tar has 1.crop.png, and no image of this name"),
        ([("0.png", picture(0)), ("1.jxl", b"")], "a.tar has 1.jxl, and no image of this name"),
        ([("0.png", picture(0)), ("1.png", picture(1)), ("0.cls", b"2")], "a.tar has 0.cls, and no image of this name"),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        scan(write_tar(tmp_path / "a.tar", files))


@pytest.mark.parametrize("suffix", ["png", "cls"])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_in_place_of_an_image_or_a_class_is_refused(suffix, kind, tmp_path):
    shard = write_tar(tmp_path / "a.tar", [("0.png", picture(0)), ("0.cls", b"1")])
    with tarfile.open(shard, "a") as tar:
        link = tarfile.TarInfo(f"1.{suffix}")
        link.type, link.linkname = kind, f"0.{suffix}"
        tar.addfile(link)
    message = f"^{shard} has 1.{suffix} as a link to 0.{suffix}: write the shard by tar --dereference --hard-deref"
    with pytest.raises(ValueError, match=message):
        scan(shard)


def test_hidden_files_and_files_of_other_kinds_part_no_image_from_its_class(tmp_path):
    files = [
        ("._0.png", b"of a Mac"),
        ("0.png", picture(0)),
        ("0.depth.png", picture(9)),
        ("._0.cls", b"of a Mac"),
        ("0.cls", b"1"),
        ("notes.txt", b""),
        ("meta.json", b'{"version": 1}'),
    ]
    index = scan(write_tar(tmp_path / "a.tar", files))
    assert [(row["name"], row["class"]) for row in index] == [(b"0.png", b"1")]


def test_a_file_of_the_class_counts_more_than_one_of_notes_wherever_it_stands(tmp_path):
    example = [("0.png", picture(0)), ("0.cls", b"3"), ("0.json", b'{"label": "safe"}')]
    for number, files in enumerate((example, example[::-1])):
        index = scan(write_tar(tmp_path / f"{number}.tar", files))
        assert index["class"].tolist() == [b"3"]
