"""The benchmark of tar shards, without the other libraries."""

import json

import pytest
import shards
import torch

from vit.data.image_files import decode


@pytest.fixture
def small(tmp_path):
    """Five images in two shards and in class folders."""
    paths = shards.save_images(tmp_path / "files", 5)
    return paths, shards.save_shards(tmp_path / "shards", paths, 2)


def test_shards_and_folders_give_the_same_images(small, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH", 5)
    monkeypatch.setattr(shards, "WORKERS", 0)
    monkeypatch.setattr(shards, "PREFETCH", None)
    paths, tars = small
    found = [shards.ours(*shards.members_of(tars), 0, 0, 1), shards.ours(paths, [*range(5)], 0, 0, 1)]
    found.append(shards.from_folder(tmp_path / "files", 0, 0, 1))
    sums = [sorted(next(batches)[0].long().sum(dim=(1, 2, 3)).tolist()) for batches in found]
    assert sums[0] == sums[1] == sums[2]
    assert [torch.equal(shards.read(path), shards.read(path.read_bytes())) for path in paths] == [True] * 5


def test_the_report_has_a_table_for_each_cell(tmp_path, unpadded):
    speed = {"images_per_second": [1.0, 2.0, 3.0], "against_best_peer": [1.0, 1.1, 1.2]}
    epoch = {"twice": 3, "never": 4, "batches": [2.0, 1.5], "same_shard": 0.14}
    start = {"images": 7, "seconds": 12.34, "processor_seconds": 5.67, "peak_gib": 1.234}
    made = {"command": "python benchmarks/shards.py", "commit": "abc1234", "machine": shards.provenance()["machine"]}
    cells = {
        "speed": made | {"images": 7, "rounds": 2, "batches": 3, "rows": {"ours, shards": speed}},
        "epoch": made | {"images": 7, "shards": 3, "rows": {"webdataset": epoch}},
        "start": made | {"images": 7, "shards": 3, "classes": 1000, "rows": {"ours, 7 images": start}},
    }
    report = unpadded(shards.report(json.loads(json.dumps(cells))))
    assert "| ours, shards | 2 (1 to 3) | 1.10 (1.00 to 1.20) |" in report
    assert "| webdataset | 3 | 4 | 2, 1.5 | 14% |" in report
    assert "| ours, 7 images | 12.3 | 5.7 | 1.32 |" in report
    assert "7 images of 1,000 classes in 3 shards." in report


def test_tiny_images_differ_and_the_set_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PER_SHARD", 5)
    pattern = shards.save_tiny_set(tmp_path / "tiny", 13)
    assert pattern == f"{tmp_path}/tiny/train-{{000000..000002}}.tar"
    members, classes = shards.members_of(sorted((tmp_path / "tiny").glob("*.tar")))
    images = [decode(member, None, 3) for member in members]
    assert [int(image[0, 0, 0]) for image in images] == [*range(13)]
    assert classes.tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1, 2]
    monkeypatch.setattr(shards, "save_tiny_images", None)
    assert shards.save_tiny_set(tmp_path / "tiny", 13) == pattern


def test_the_start_is_measured_with_a_hundredth_and_a_tenth_of_the_images_too(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CLASSES", 1)
    monkeypatch.setattr(shards, "PER_SHARD", 50)
    found = iter([3.0, 1.0, 2.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0])
    started = []

    def start_once(pattern):
        started.append(pattern)
        return {"seconds": next(found), "processor_seconds": 0.5, "peak_gib": 0.25}

    monkeypatch.setattr(shards, "start_once", start_once)
    cell = shards.measure_start(tmp_path, 200)
    assert {name: (row["images"], row["seconds"]) for name, row in cell["rows"].items()} == {
        "ours, 2 images": (2, 2.0),
        "ours, 20 images": (20, 5.0),
        "ours, 200 images": (200, 8.0),
    }
    assert started[0] == f"{tmp_path}/2/train-{{000000..000000}}.tar"
    assert started[-1] == f"{tmp_path}/200/train-{{000000..000003}}.tar"
    shards.draw_start(cell, tmp_path / "start.png")
    assert (tmp_path / "start.png").stat().st_size > 1000


def test_the_program_of_the_start_prints_seconds_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CLASSES", 2)
    found = shards.start_once(shards.save_tiny_set(tmp_path / "tiny", 600))
    assert 0 < found["seconds"] < 300
    assert found["processor_seconds"] > 0
    assert 0.05 < found["peak_gib"] < 4
