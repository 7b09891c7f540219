"""``vit-attention evaluate``: frozen features and a simple classifier."""

import pytest
from PIL import Image

from vit.commands.evaluate import main


@pytest.fixture
def photos(tmp_path):
    """Two classes of four training and two test images, and a file that is none."""
    for split, count in (("train", 4), ("test", 2)):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for image in range(count):
                Image.new("RGB", (32, 32), (250 * number, 9 * image, 0)).save(tmp_path / split / name / f"{image}.png")
    (tmp_path / "train/cat/bad.png").write_text("no image")
    return tmp_path


def error_of(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["knn", "--checkpoint", "cifar10", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_folder_that_is_not_there_is_answered_with_an_option_of_this_command(capsys, tmp_path):
    assert error_of(capsys, "--data.root", tmp_path / "none").startswith(f"error: no folder {tmp_path}/none: name a")


@pytest.mark.slow
def test_the_option_that_is_advised_for_damaged_files_is_taken(capsys, photos, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / ".cache"))
    assert "by --data.skip_damaged true" in error_of(capsys, "--data.root", photos)
    main(["knn", "--checkpoint", "cifar10", "--data.root", str(photos), "--data.skip_damaged", "true"])
    assert "knn: 100.00 % of 4 test images, from 8 training images of 2 classes" in capsys.readouterr().out
