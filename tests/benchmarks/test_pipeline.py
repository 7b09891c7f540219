"""The comparison of data paths, on a few images."""

import itertools
import json

import pipeline
import pytest
import torch
from PIL import Image
from pipeline import (
    ImagesInMemory,
    from_files,
    from_memory,
    main,
    pil_transform,
    tensor_transform,
    timm_batches,
    torchvision_batches,
)
from torch.testing import assert_close
from torchvision import datasets, transforms

CPU = torch.device("cpu")


def noise(count, *shape):
    return torch.randint(256, (count, *shape), dtype=torch.uint8)


def test_images_are_the_same_as_those_of_torchvisions_cifar10():
    rows, labels = noise(5, 32, 32, 3).numpy(), [3, 1, 4, 1, 5]
    transform = pil_transform("randaugment")
    theirs = datasets.CIFAR10.__new__(datasets.CIFAR10)  # without its files
    theirs.data, theirs.targets, theirs.target_transform = rows, labels, None
    theirs.transform = transforms.Compose(transform.transforms[1:])  # makes the PIL image itself
    for index in range(5):
        torch.manual_seed(index)
        expected = theirs[index]
        torch.manual_seed(index)
        assert_close(ImagesInMemory(rows, labels, transform)[index], expected)


def test_all_paths_end_in_the_same_numbers():
    # Images of one colour each, which no crop and no flip changes.
    images = noise(128, 3, 1, 1).expand(-1, -1, 32, 32).contiguous()
    labels = torch.zeros(128, dtype=torch.long)
    rows = images.permute(0, 2, 3, 1).contiguous().numpy()
    paths = [
        from_memory(images, labels, "none", CPU),
        torchvision_batches(ImagesInMemory(rows, labels.tolist(), pil_transform("none")), 128, 0, CPU),
        torchvision_batches(ImagesInMemory(images, labels.tolist(), tensor_transform("none")), 128, 0, CPU),
    ]
    for batches in itertools.islice(zip(*paths, strict=True), 3):  # an epoch has one
        assert all(batch.shape == (128, 3, 32, 32) and batch.dtype == torch.float32 for batch in batches)
        expected, *others = (batch.double().flatten(1).sort(0).values for batch in batches)
        for found in others:
            assert_close(found, expected, atol=1e-5, rtol=0)


# timm leaves the closing of its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed file:ResourceWarning")
def test_all_paths_from_files_end_in_the_same_numbers(tmp_path, monkeypatch):
    # Images of one grey level each, which no crop and no flip changes.
    monkeypatch.setattr(pipeline, "PHOTO_BATCH", 5)
    for number in range(5):
        path = tmp_path / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (67 + 100 * number, 71), (50 * number,) * 3).save(path)
    on_pil = datasets.ImageFolder(tmp_path, pipeline.photograph_transform(tensors=False))
    on_tensors = datasets.ImageFolder(tmp_path, pipeline.photograph_transform(tensors=True))
    paths = [
        from_files(tmp_path, 0, CPU),
        torchvision_batches(on_pil, 5, 0, CPU),
        torchvision_batches(on_tensors, 5, 0, CPU),
        timm_batches(tmp_path, 0, CPU),
    ]
    expected, *others = (next(path) for path in paths)
    assert expected.shape == (5, 3, 224, 224)
    for found in others:
        assert_close(found.flatten(1).sort(0).values, expected.flatten(1).sort(0).values, atol=1e-5, rtol=0)


def test_photographs_have_many_sizes_and_names(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "SHORTEST", 5)
    monkeypatch.setattr(pipeline, "LONGEST", 20)
    monkeypatch.setattr(pipeline, "LINKS", 3)
    pipeline.save_photographs(tmp_path, 7)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert len(files) == 21
    assert len({path.stat().st_ino for path in files}) == 7
    sides = [side for path in files for side in datasets.folder.default_loader(path).size]
    assert 5 <= min(sides) < max(sides) <= 20


def test_it_measures_every_path_with_and_without_workers(tmp_path, monkeypatch, unpadded, capsys):
    monkeypatch.setattr(pipeline, "POLICIES", {"crop, flip and RandAugment": "randaugment"})
    monkeypatch.setattr(pipeline, "BATCHES", 2)
    monkeypatch.setattr(pipeline, "PAUSE", 0)
    monkeypatch.setattr(pipeline.os, "cpu_count", lambda: 1)
    for name, value in {"PHOTO_PAUSE": 0, "PHOTO_BATCH": 2, "PHOTO_WORKERS": 1, "SHORTEST": 5, "LONGEST": 9}.items():
        monkeypatch.setattr(pipeline, name, value)
    main(
        [
            "--sources",
            "memory",
            "files",
            "--images",
            "200",
            "--photographs",
            "3",
            "--rounds",
            "1",
            "--output",
            str(tmp_path),
        ]
    )
    (name, cell), (from_files, cell_of_files) = json.loads((tmp_path / "pipeline.json").read_text()).items()
    assert name == f"crop, flip and RandAugment {pipeline.DEVICE.type}"
    assert from_files == f"photographs from files {pipeline.DEVICE.type}"
    others = ["torchvision, PIL images, 1 workers", "torchvision, v2 on tensors, 1 workers", "timm, 1 workers"]
    assert list(cell_of_files["rows"]) == ["ours", *others]
    assert [1, 1, 1] in [cell_of_files["rows"][path]["against_best_peer"] for path in others]
    assert cell_of_files["images"] == 3
    assert cell_of_files.keys() >= {"command", "machine", "commit"}
    paths = [f"torchvision, {p}, {w} workers" for p in ("PIL images", "v2 on tensors") for w in (0, 1)]
    assert list(cell["rows"]) == ["ours", *paths]
    assert all(row["images_per_second"][0] > 0 for row in cell["rows"].values())
    assert [1, 1, 1] in [cell["rows"][path]["against_best_peer"] for path in paths]
    assert cell["images"] == 200
    assert cell.keys() >= {"command", "machine", "commit"}
    report = (tmp_path / "pipeline.md").read_text()
    assert capsys.readouterr().out.strip() == report.strip()
    assert unpadded(report).count("\n| ours | ") == 2


def test_one_source_may_be_measured_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "measure", None)
    monkeypatch.setattr(pipeline, "measure_files", lambda *_: {"images": 7, "rounds": 1, "batches": 2, "rows": {}})
    monkeypatch.setattr(pipeline, "report", str)
    main(["--sources", "files", "--output", str(tmp_path)])
    (cell,) = json.loads((tmp_path / "pipeline.json").read_text()).values()
    assert cell["images"] == 7


def test_batches_prepared_before_a_turn_are_not_counted(monkeypatch):
    drawn = {0: 0, 3: 0}

    def batches(dataset, batch_size, workers, device):
        while True:
            drawn[workers] += 1
            yield torch.zeros(())

    monkeypatch.setattr(pipeline, "PAUSE", 0)
    monkeypatch.setattr(pipeline, "torchvision_batches", batches)
    pipeline.measure(noise(128, 3, 32, 32), "none", rounds=2, batches=5, worker_counts=(0, 3), device=CPU)
    # Two paths each, one call to warm up and two on the clock; three workers are two batches each ahead.
    assert drawn == {0: 2 * 3 * 5, 3: 2 * 3 * (5 + 6)}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--images 127", "--images (127) must be at least one batch (128)"),
        ("--photographs 3", "--photographs (3) must be at least 4"),
    ],
)
def test_fewer_images_than_a_batch_are_refused(option, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*option.split(), "--output", str(tmp_path)])
    assert message in capsys.readouterr().err
