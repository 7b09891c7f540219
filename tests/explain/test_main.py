"""``python -m vit.explain`` as a user meets it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import vit
from vit.explain.__main__ import main

NAMES = ["cat", "dog", "bird"]
ARGUMENTS = {
    "image_size": (8, 12),
    "patch_size": 4,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 3,
}


def checkpoint(path, **kwargs):
    """A checkpoint as training writes it, of a model that was not trained."""
    torch.manual_seed(0)
    arguments = ARGUMENTS | kwargs
    state = vit.VisionTransformer(**arguments).state_dict()
    described = {"class_names": NAMES, "mean": [0.5] * 3, "std": [0.25] * 3}
    torch.save(
        {"hyper_parameters": arguments | described, "state_dict": {f"vit.{name}": x for name, x in state.items()}}, path
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to be in, with a checkpoint, a file that is no image, and two images of the same name."""
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "best.ckpt")
    for name, size in (("photo.png", (40, 30)), ("more/photo.png", (12, 8)), ("more/grey.jpg", (9, 50))):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pixels = torch.randint(0, 256, (size[1], size[0], 3), dtype=torch.uint8)
        image = Image.fromarray(pixels.numpy())
        (image.convert("L") if path.stem == "grey" else image).save(path)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def mistake(here, capsys):
    """Run a command that must fail in one line, and return that line."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        assert stopped.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    return run


def test_the_command_writes_an_overlay_that_can_be_seen_and_says_so(here):
    command = [sys.executable, "-m", "vit.explain", "photo.png", "--checkpoint", "best.ckpt"]
    environment = {"PYTHONPATH": str(Path(vit.__file__).parents[1]), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = done.stdout.splitlines()
    assert first.removeprefix("photo.png: ").split(" (")[0] in NAMES
    assert second == "  explained/photo_rollout.png"
    assert last == "explained/sheet.png: all on one sheet"
    with Image.open(here / "explained/photo_rollout.png") as picture:
        assert picture.size == (576, 384)  # 48 times 12 x 8
        for column, row in ((0, 0), (191, 191)):
            assert picture.getpixel((column - column % 48, row - row % 48)) == picture.getpixel((column, row))


def test_folders_methods_and_pages_of_several_images(here, capsys):
    main(["photo.png", "more", "--checkpoint", "best.ckpt", "--method", "rollout", "relevance", "--html", "--out", "o"])
    images = (f"{here.name}_photo", "more_photo", "grey")
    overlays = {f"{name}_{method}.png" for name in images for method in ("rollout", "relevance")}
    written = {path.name for path in (here / "o").iterdir()}
    assert written == overlays | {f"{name}.html" for name in images} | {"sheet.png"}
    assert capsys.readouterr().err == ""


def test_a_question_about_classes_by_name_or_number(here, capsys):
    main(["photo.png", "--checkpoint", "best.ckpt", "--target", "dog", "--versus", "2", "--html", "pages/one.html"])
    printed = capsys.readouterr().out
    assert "  why dog, and not bird?" in printed
    assert "note: the class asked about changes nothing in maps of rollout" in printed
    assert (here / "pages/one.html").read_text().startswith("<!")


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ([], ""),
        (["--target", "dog"], "why dog?"),
        (["--target", "dog", "--versus", "2"], "why dog, and not bird?"),
        (["--versus", "{other}"], "why the predicted class, and not {other}?"),
    ],
)
def test_the_sheet_says_which_question_its_maps_answer(question, title, here, capsys, monkeypatch):
    command = ["photo.png", "--checkpoint", "best.ckpt"]
    main(command)
    predicted = capsys.readouterr().out.removeprefix("photo.png: ").split(" (")[0]
    other = NAMES[NAMES.index(predicted) - 1]
    titles = []
    monkeypatch.setattr("vit.explain.figures.draw_maps", lambda *args, title, **kwargs: titles.append(title))
    main([*command, *(word.format(other=other) for word in question)])
    assert titles == [title.format(other=other)]


def test_maps_follow_the_question(here):
    for target in NAMES[:2]:
        main(["photo.png", "--checkpoint", "best.ckpt", "--method", "occlusion", "--target", target, "--out", target])
    one, other = (Image.open(here / target / "photo_occlusion.png").tobytes() for target in NAMES[:2])
    assert one != other


def test_trust_is_reported_when_asked_for(here, capsys):
    main(["photo.png", "more", "--checkpoint", "best.ckpt", "--trust"])
    assert "rollout does not depend on the class" in capsys.readouterr().out


def test_trust_says_that_it_is_about_the_predicted_class(here, capsys):
    main(["photo.png", "--checkpoint", "best.ckpt", "--trust", "--target", "dog"])
    assert "note: the report is about maps of the predicted classes" in capsys.readouterr().out


def test_the_help_names_methods_and_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(word in printed for word in ("--checkpoint", "--html", "--trust", "integrated_gradients", "same map"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--checkpoint best.ckpt", "required: IMAGE, before all options"),
        ("photo.png", "required: --checkpoint"),
        ("photo.png --checkpoint best.ckpt --smooth", "unrecognized arguments: --smooth"),
        ("nowhere.png --checkpoint best.ckpt", "no image at nowhere.png"),
        ("empty --checkpoint best.ckpt", "no images in the folder empty"),
        ("notes.txt --checkpoint best.ckpt", "cannot read image notes.txt: it is no image"),
        ("photo.png --checkpoint none.ckpt", "no checkpoint at none.ckpt"),
        ("photo.png --checkpoint notes.txt", "notes.txt is not a checkpoint"),
        (
            "photo.png --checkpoint best.ckpt --method rolout",
            "unknown method 'rolout': choose one of attention, rollout",
        ),
        ("photo.png --checkpoint best.ckpt --method rollout more", "'more'.*name images before the options"),
        (
            "photo.png --checkpoint best.ckpt --target dgo",
            "unknown class 'dgo' .did you mean dog.*cat, dog, bird.* 0 to 2",
        ),
        ("photo.png --checkpoint best.ckpt --target 3", "unknown class '3'"),
        ("photo.png --checkpoint best.ckpt --target dog --versus 1", "photo.png: 'dog' would be compared with itself"),
        ("more --checkpoint best.ckpt --html all.html", "all.html is one file for 2 images"),
        ("photo.png --checkpoint best.ckpt --html photo.png", "photo.png does not end in .html"),
        ("photo.png --checkpoint best.ckpt --out notes.txt", "notes.txt"),
        ("photo_rollout.png photo.png --checkpoint best.ckpt --out .", "photo_rollout.png would be written over"),
        (
            "photo.png photo_gradient.png --checkpoint best.ckpt --method rollout gradient_rollout",
            "written over another",
        ),
        ("photo.png --checkpoint linear.ckpt", "never forms the matrix of attention weights"),
    ],
)
def test_mistakes_are_answered_in_one_line(here, mistake, arguments, words):
    for copy in re.findall(r"photo_\w+\.png", arguments):
        shutil.copy(here / "photo.png", here / copy)
    if "linear" in arguments:
        checkpoint(here / "linear.ckpt", attention="linear")
    assert re.search(words, mistake(*arguments.split()))
    assert (here / "photo.png").read_bytes().startswith(b"\x89PNG")
