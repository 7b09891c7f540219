"""CIFAR-10 and CIFAR-100, from small archives in the format of the real ones."""

import io
import pickle
import socket
import tarfile
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from torchvision.datasets.utils import calculate_md5

from vit.data import CIFAR10, CIFAR100

BATCHES = {CIFAR10: [f"data_batch_{number}" for number in range(1, 6)], CIFAR100: ["train"]}
TEST = {CIFAR10: "test_batch", CIFAR100: "test"}
META = {CIFAR10: ("batches.meta", "label_names"), CIFAR100: ("meta", "fine_label_names")}
LABELS = {CIFAR10: "labels", CIFAR100: "fine_labels"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every attempt to open a connection fails at once."""

    def unreachable(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)


@pytest.fixture(params=[CIFAR10, CIFAR100])
def cifar(request):
    return request.param


def batch(name: str, cifar: type) -> dict:
    """The content of a file of the archive: seven images, as rows of 3,072 bytes, and their labels."""
    random = np.random.default_rng(list(name.encode()))
    labels = random.integers(cifar.num_classes, size=7).tolist()
    return {"data": random.integers(256, size=(7, 3072), dtype=np.uint8), LABELS[cifar]: labels}


@pytest.fixture
def archive(cifar, tmp_path, monkeypatch) -> Path:
    """An archive in the format of the real one, with torchvision's checksums changed to its own."""
    source, path = cifar.source, tmp_path / cifar.source.filename
    meta, key = META[cifar]
    contents = {name: batch(name, cifar) for name in [*BATCHES[cifar], TEST[cifar]]} | {meta: {key: cifar.class_names}}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            pickled = pickle.dumps(content)
            (tmp_path / name).write_bytes(pickled)
            member = tarfile.TarInfo(f"{source.base_folder}/{name}")
            member.size = len(pickled)
            tar.addfile(member, io.BytesIO(pickled))
    md5 = {name: calculate_md5(tmp_path / name) for name in contents}
    monkeypatch.setattr(source, "tgz_md5", calculate_md5(path))
    monkeypatch.setattr(source, "train_list", [[name, md5[name]] for name in BATCHES[cifar]])
    monkeypatch.setattr(source, "test_list", [[TEST[cifar], md5[TEST[cifar]]]])
    monkeypatch.setattr(source, "meta", {"filename": meta, "key": key, "md5": md5[meta]})
    return path


def ready(cifar, root):
    data = cifar(root=str(root), val_fraction=0.0)
    data.prepare_data()
    data.setup("fit")
    return data.sets


def test_images_and_labels_are_those_of_the_archive(cifar, archive):
    sets = ready(cifar, archive.parent)
    for stage, names in (("train", BATCHES[cifar]), ("test", [TEST[cifar]])):
        batches = [batch(name, cifar) for name in names]
        planes = np.concatenate([content["data"] for content in batches]).reshape(-1, 3, 32, 32)
        assert sets[stage].images.tolist() == planes.tolist()
        assert sets[stage].labels.tolist() == [label for content in batches for label in content[LABELS[cifar]]]
        assert sets[stage].images.is_contiguous()


def test_an_extracted_archive_is_enough(cifar, archive, capsys):
    ready(cifar, archive.parent)
    archive.unlink()
    assert len(ready(cifar, archive.parent)["test"].labels) == 7
    assert "downloading" not in capsys.readouterr().out


def test_a_damaged_extraction_is_repaired_from_the_archive(cifar, archive):
    ready(cifar, archive.parent)
    (archive.parent / cifar.source.base_folder / TEST[cifar]).write_bytes(b"damaged")
    assert len(ready(cifar, archive.parent)["test"].labels) == 7


def test_a_damaged_archive_is_named_with_both_checksums(cifar, archive):
    content = archive.read_bytes()
    archive.write_bytes(content[:-7])
    message = (
        rf"^{archive} is damaged \(md5 {calculate_md5(archive)}, expected {cifar.source.tgz_md5}\): "
        "delete it and run again, or copy an intact one there$"
    )
    with pytest.raises(ValueError, match=message):
        cifar(root=str(archive.parent)).prepare_data()
    assert not (archive.parent / cifar.source.base_folder).exists()


def test_without_archive_and_network_the_message_names_the_remedies(cifar, tmp_path, capsys):
    with pytest.raises(ValueError, match="no network") as error:
        cifar(root=str(tmp_path / "data")).prepare_data()
    message = str(error.value)
    assert message.startswith(f"no {cifar.__name__} in {tmp_path / 'data'} and no download")
    assert f"put {cifar.source.filename} into {tmp_path / 'data'}" in message
    assert "--data.root" in message
    assert "--data Digits" in message
    assert "\n" not in message
    assert f"downloading {cifar.source.url} to {tmp_path / 'data'}" in capsys.readouterr().out


def test_a_damaged_extraction_without_archive_and_network_is_an_error_with_a_remedy(cifar, archive):
    ready(cifar, archive.parent)
    archive.unlink()
    (archive.parent / cifar.source.base_folder / TEST[cifar]).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"put {cifar.source.filename} into {archive.parent}"):
        cifar(root=str(archive.parent)).prepare_data()


def served(content: bytes):
    """A replacement of urlopen that returns this content for every address."""

    def urlopen(request, *_, **__):
        response = io.BytesIO(content)
        response.url = request if isinstance(request, str) else request.full_url
        addresses.append(response.url)
        response.length, response.headers = None, {}
        return response

    addresses = urlopen.addresses = []
    return urlopen


def test_a_missing_archive_is_downloaded(cifar, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", served(archive.read_bytes()))
    assert len(ready(cifar, tmp_path / "elsewhere")["test"].labels) == 7
    assert set(urllib.request.urlopen.addresses) == {cifar.source.url}


def test_a_download_that_arrives_damaged_is_an_error_with_a_remedy(cifar, tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", served(b"damaged"))
    with pytest.raises(ValueError, match=f"put {cifar.source.filename} into {tmp_path}"):
        cifar(root=str(tmp_path)).prepare_data()


def test_each_has_its_archive_classes_in_the_order_of_their_labels_and_colour_images(cifar):
    count = {CIFAR10: 10, CIFAR100: 100}[cifar]
    assert cifar.source.filename == f"cifar-{count}-python.tar.gz"
    assert cifar.class_names == sorted(set(cifar.class_names))
    assert len(cifar.class_names) == cifar.num_classes == count
    assert cifar.image_size == (32, 32)
    assert cifar.in_channels == len(cifar.mean) == len(cifar.std) == 3
    assert cifar().root == Path("data")


@pytest.mark.parametrize("what", ["damaged", "missing"])
def test_a_damaged_file_of_an_extracted_archive_is_named_and_not_called_no_archive(cifar, archive, tmp_path, what):
    cifar(tmp_path).prepare_data()
    archive.unlink()
    file = tmp_path / cifar.source.base_folder / TEST[cifar]
    if what == "damaged":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(ValueError, match=f"{file} is damaged or missing: delete .*, and put {cifar.source.filename}"):
        cifar(tmp_path).prepare_data()
