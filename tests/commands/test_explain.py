"""The command ``python -m vit.explain``: its files, its output, and its errors."""

import base64
import csv
import json
import re
import runpy
import shutil
import struct
import sys
import zlib
from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image

import vit
from vit.commands.explain import main
from vit.commands.photographs import locate, read_images, read_shown
from vit.explain import photograph_sheet
from vit.explain.default_method import NOT_MEASURED
from vit.explain.maps import METHODS
from vit.glossary import MAPS

NAMES = ["cat", "dog", "bird"]
SMALL = {"image_size": (8, 12), "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 3}


def save_checkpoint(path, **kwargs):
    """Save a checkpoint as training does, of an untrained model."""
    torch.manual_seed(0)
    arguments = SMALL | kwargs
    state = vit.VisionTransformer(**arguments).state_dict()
    channels, classes = arguments.get("in_channels", 3), arguments["num_classes"]
    described = {"class_names": NAMES[:classes], "mean": [0.5] * channels, "std": [0.25] * channels}
    torch.save(
        {"hyper_parameters": arguments | described, "state_dict": {f"vit.{name}": x for name, x in state.items()}}, path
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with checkpoints, a file that is not an image, and two images of the same name."""
    folder = tmp_path_factory.mktemp("images")
    save_checkpoint(folder / "best.ckpt")
    save_checkpoint(folder / "linear.ckpt", attention="linear")
    save_checkpoint(folder / "headless.ckpt", num_classes=0)
    save_checkpoint(folder / "four.ckpt", in_channels=4)
    for name, size in {
        "photo.png": (40, 30),
        "photo_rollout.png": (40, 30),
        "photo_gradient.png": (40, 30),
        "more/photo.png": (12, 8),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(torch.randint(0, 256, (size[1], size[0], 3), dtype=torch.uint8).numpy()).save(folder / name)
    Image.new("L", (9, 50)).save(folder / "more/grey.jpg")
    (folder / "notes.txt").write_text("no image")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """The current folder, a copy of ``folder``."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_an_overlay_on_the_photograph_and_names_it(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vit.explain", "photo.png", "--checkpoint", "best.ckpt"])
    monkeypatch.delitem(sys.modules, "vit.commands.explain")
    runpy.run_module("vit.explain", run_name="__main__")
    printed = capsys.readouterr()
    assert printed.err == ""
    first, second, third, fourth, last = printed.out.splitlines()
    assert first.removeprefix("photo.png: ").split(" (")[0] in NAMES
    assert second == "  explained/photo_relevance.png"
    assert third == "explained/cells.csv: the cells of all maps, in pixels of the photographs"
    assert fourth == "explained/sheet.png: all on one sheet"
    assert last == f"note: {NOT_MEASURED} Measure yours: --trust"
    with Image.open(here / "explained/photo_relevance.png") as picture:
        assert picture.info["Description"] == f"relevance of {first}"
        assert picture.width > 520  # 13 times 40, and a margin


def test_a_second_run_writes_beside_the_first_and_changes_nothing_of_it(here, capsys):
    command = ["photo.png", "--checkpoint", "best.ckpt"]
    main(command)
    (here / "explained/mine.txt").write_text("kept")
    before = {path: path.read_bytes() for path in (here / "explained").iterdir()}
    main([*command, "--method", "rollout"])
    main(command)
    assert "explained_2/sheet.png: all on one sheet" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (here / "explained").iterdir()} == before
    assert (here / "explained_1/photo_rollout.png").exists()
    main([*command, "--overwrite"])
    assert "explained/sheet.png: all on one sheet" in capsys.readouterr().out
    assert not (here / "explained_3").exists()


def test_a_folder_of_a_users_own_is_only_written_over_on_request(here, capsys):
    command = ["photo.png", "--checkpoint", "best.ckpt", "--out", "mine"]
    main(command)
    with pytest.raises(SystemExit):
        main(command)
    assert "exists: add --overwrite" in capsys.readouterr().err


# How a photograph is stored whose EXIF orientation turns it upright again.
STORED = {
    3: Image.Transpose.ROTATE_180,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
SHAPES = [
    *[(101, 67, 1), (67, 101, 1), (97, 97, 1), (31, 199, 1), (640, 427, 6), (427, 640, 8), (211, 113, 3)],
    *[(113, 211, 5), (1801, 1201, 7)],
]


@pytest.fixture
def planted(here):
    """Dark photographs of nine shapes with a bright square in one cell: the file, the square's middle, and the cell."""
    (here / "planted").mkdir()
    squares = {}
    for width, height, orientation in SHAPES:
        # The model sees as much as fits of 3 x 2 cells, in the middle.
        side = min(width / 3, height / 2)
        cell = len(squares) % 2, len(squares) % 3
        x, y = width / 2 + (cell[1] - 1) * side, height / 2 + (cell[0] - 0.5) * side
        picture = Image.new("RGB", (width, height))
        picture.paste((255, 255, 255), tuple(round(c + d * side) for d in (-0.4, 0.4) for c in (x, y)))
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        stored = picture.transpose(STORED[orientation]) if orientation in STORED else picture
        name = f"planted/{len(squares)}.{'png' if orientation == 1 else 'jpg'}"
        stored.save(here / name, exif=exif)
        squares[name] = (x, y), cell, side
    return squares


def test_the_brightest_cell_lies_on_the_planted_square_of_the_photograph_as_taken(planted, here, monkeypatch):
    def brightness(subject):
        return subject.sum_over_patches(subject.images - subject.images.min())

    drawn, draw_map = [], photograph_sheet.draw_map
    monkeypatch.setattr("vit.commands.explain_files.draw_map", lambda *args: drawn.append(draw_map(*args)) or drawn[-1])
    monkeypatch.setitem(METHODS, "brightness", brightness)
    main(["planted", "--checkpoint", "best.ckpt", "--method", "brightness"])
    with (here / "explained/cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(SHAPES) * 6
    model = vit.load("best.ckpt")
    of_files = zip(planted.items(), SHAPES, drawn, strict=True)
    for (name, ((x, y), cell, side)), (width, height, orientation), found in of_files:
        of_file = [row for row in rows if row["file"] == name]
        best = max(of_file, key=lambda row: float(row["value"]))
        assert (int(best["row"]), int(best["column"])) == cell
        assert [int(best[key]) for key in ("width", "height", "exif_orientation")] == [width, height, orientation]
        box = [float(best[key]) for key in ("left", "top", "right", "bottom")]
        assert box == pytest.approx([x - side / 2, y - side / 2, x + side / 2, y + side / 2], abs=0.01)
        assert sorted(float(row["value"]) for row in of_file)[-2] < 0.1 * float(best["value"])
        _, rows_shown, columns_shown = read_shown(locate(name, model)).shape
        scale = columns_shown / width
        assert rows_shown == pytest.approx(scale * height, abs=0.5)
        left, top, _, _ = found.boxes[0]
        with Image.open(here / f"explained/{Path(name).stem}_brightness.png") as opened:
            picture = opened.convert("RGB")
            assert picture.getpixel((left + scale * x, top + scale * y)) == pytest.approx((231, 199, 109), abs=4)
            if max(width - 3 * side, height - 2 * side) > 4:  # what was not seen has no colour
                corners = ((left, top), (left + columns_shown - 1, top))
                assert len({colour for corner in corners for colour in picture.getpixel(corner)}) == 1


def test_folders_methods_and_pages_of_several_images(here, capsys):
    main(["photo.png", "more", "--checkpoint", "best.ckpt", "--method", "rollout", "relevance", "--html", "--out", "o"])
    images = (f"{here.name}_photo", "more_photo", "grey")
    overlays = {f"{name}_{method}.png" for name in images for method in ("rollout", "relevance")}
    written = {path.name for path in (here / "o").iterdir()}
    assert written == overlays | {f"{name}.html" for name in images} | {"sheet.png", "cells.csv"}
    assert capsys.readouterr().err == ""


def test_damaged_images_are_skipped_and_named(here, capsys):
    (here / "more/grey.jpg").write_text("no image")
    main(["photo.png", "more", "--checkpoint", "best.ckpt"])
    output = capsys.readouterr()
    assert "left out: cannot read image more/grey.jpg: it is no image" in output.err
    assert "photo.png: " in output.out


def test_classes_are_chosen_by_name_or_number(here, capsys):
    main(["photo.png", "--checkpoint", "best.ckpt", "--target", "dog", "--versus", "2", "--method", "rollout"])
    printed = capsys.readouterr().out
    assert "  why dog, and not bird?" in printed
    assert "note: maps of rollout are the same for every class; --method relevance depends on it" in printed


def test_the_page_has_the_maps_that_were_asked_for_and_names_model_and_file(here):
    arguments = "photo.png --checkpoint best.ckpt --target dog --versus 2 --html new/pages/one.html"
    main([*arguments.split(), "--method", "rollout", "relevance"])
    page = (here / "new/pages/one.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert (data["model"], data["image"]) == ("best.ckpt", "photo.png")
    assert data["caution"].startswith(NOT_MEASURED)
    assert data["mapNames"] == ["rollout: the same for every class", "relevance: why dog, and not bird?"]
    with (here / "explained/cells.csv").open(newline="") as file:
        written = [float(row["value"]) for row in csv.DictReader(file)]
    shown = struct.unpack("<12f", zlib.decompress(base64.b64decode(data["maps"])))
    assert shown == pytest.approx(written, rel=1e-4)


def test_pages_of_the_newest_run_say_which_run_that_is(here):
    save_checkpoint(here / "best.ckpt")
    (here / "runs/ants/version_3/checkpoints").mkdir(parents=True)
    (here / "best.ckpt").rename(here / "runs/ants/version_3/checkpoints/last.ckpt")
    main(["photo.png", "--checkpoint", "last", "--html", "page.html"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', (here / "page.html").read_text())[1])
    assert data["model"] == "runs/ants/version_3"


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ([], ""),
        (["--target", "dog"], "why dog?"),
        (["--target", "dog", "--versus", "2"], "why dog, and not bird?"),
        (["--versus", "{other}"], "why the predicted class, and not {other}?"),
    ],
)
def test_the_title_of_the_sheet_is_the_question(question, title, here, monkeypatch):
    model = vit.load("best.ckpt")
    other = NAMES[model(read_images([Path("photo.png")], model)[1]).argmax() - 1]
    titles = []
    draw_sheet = photograph_sheet.draw_sheet
    monkeypatch.setattr(
        "vit.commands.explain_files.draw_sheet",
        lambda *args, title, **kwargs: titles.append(title) or draw_sheet(*args, title=title, **kwargs),
    )
    main(["photo.png", "--checkpoint", "best.ckpt", *(word.format(other=other) for word in question)])
    assert titles == [title.format(other=other)]


def test_maps_depend_on_the_target(here):
    for target in NAMES[:2]:
        main(["photo.png", "--checkpoint", "best.ckpt", "--method", "occlusion", "--target", target, "--out", target])
    one, other = (values_of(here / target / "cells.csv") for target in NAMES[:2])
    assert one != other


def values_of(path):
    """The values of a table of cells, by method."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = {row["method"]: [] for row in rows}
    for row in rows:
        values[row["method"]].append(float(row["value"]))
    return values


def test_a_layer_and_a_head_are_those_of_the_model_from_0(here):
    main(["photo.png", "--checkpoint", "best.ckpt", "--layer", "0", "--head", "1"])
    assert (here / "explained/photo_attention_layer0_head1.png").exists()
    model = vit.load("best.ckpt")
    attn = vit.explain.capture_attention(model, read_images([Path("photo.png")], model)[1])[0]
    found = values_of(here / "explained/cells.csv")
    assert found == {"attention, layer 0, head 1": pytest.approx(attn[0, 1, 0, 1:].tolist(), rel=1e-4)}


def test_all_methods_are_drawn_on_one_sheet_and_those_that_do_not_fit_are_named(here, capsys):
    main(["photo.png", "--checkpoint", "linear.ckpt", "--method", "all"])
    assert {path.name for path in (here / "explained").iterdir()} == {"sheet.png", "cells.csv"}
    printed = capsys.readouterr().out
    assert re.search("  left out: rollout: .* never forms the matrix", printed)
    drawn = values_of(here / "explained/cells.csv")
    assert "occlusion" in drawn
    assert "rollout" not in drawn


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_pictures_are_drawings_if_asked_for_and_have_the_size_asked_for(here, kind):
    main(["photo.png", "--checkpoint", "best.ckpt", "--format", kind, "--size", "200"])
    written = (here / f"explained/photo_relevance.{kind}").read_bytes()
    assert written.startswith({"svg": b"<?xml", "pdf": b"%PDF"}[kind])
    assert (here / f"explained/sheet.{kind}").exists()


def test_two_models_stand_side_by_side_each_with_its_own_answer(here, capsys):
    save_checkpoint(here / "other.ckpt", embed_dim=24, patch_size=2)
    main(["photo.png", "--checkpoint", "best.ckpt", "--compare", "other.ckpt", "--target", "dog"])
    first, asked, second, again, path, cells, compared, _ = capsys.readouterr().out.splitlines()
    assert re.match(r"photo.png: (cat|dog|bird) \(\d", first)
    assert re.match(r"  other.ckpt: (cat|dog|bird) \(\d", second)
    assert asked == again == "  why dog?"
    assert cells.endswith("(best.ckpt)")
    assert compared.endswith("(other.ckpt)")
    for name, patches in (("cells", 6), ("cells_compared", 24)):
        assert len(values_of(here / f"explained/{name}.csv")["relevance"]) == patches
    with Image.open(path.strip()) as picture:
        assert picture.width > 2 * 520


def test_transparent_places_are_named(here, capsys):
    Image.new("RGBA", (40, 30), (9, 9, 9, 0)).save("ghost.png")
    Image.new("RGBA", (40, 30), (9, 9, 9, 255)).save("solid.png")
    main(["ghost.png", "solid.png", "--checkpoint", "best.ckpt"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "ghost.png: transparent in places, which are read in the colours that lie below"


def test_contributions_are_drawn_and_the_table_adds_up_to_the_logit(here, capsys):
    main(
        [
            "photo.png",
            "more/grey.jpg",
            "--checkpoint",
            "best.ckpt",
            "--target",
            "cat",
            "--versus",
            "dog",
            "--contributions",
        ]
    )
    printed = capsys.readouterr().out
    assert "  explained/photo_contributions.png" in printed
    assert "explained/contributions.csv: all terms; those of a file add up to its logit" in printed
    with Image.open(here / "explained/grey_contributions.png") as picture:
        assert min(picture.size) > 600
    with (here / "explained/contributions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"why cat, and not dog?"}
    model = vit.load("best.ckpt")
    _, images = read_images([Path("photo.png"), Path("more/grey.jpg")], model)
    logits = model(images).detach()
    for name, (cat, dog, _) in zip(("photo.png", "more/grey.jpg"), logits.tolist(), strict=True):
        of_file = [row for row in rows if row["file"] == name]
        assert sum(float(row["value"]) for row in of_file) == pytest.approx(cat - dog, abs=1e-4)
        assert [row["term"] for row in of_file].count("head") == 2 * 2 * 7
        assert {(row["row"], row["column"]) for row in of_file if row["token"] == "6"} == {("1", "2")}
        assert {(row["row"], row["column"]) for row in of_file if row["token"] == "0"} == {("", "")}


def test_a_model_whose_logit_is_no_sum_is_refused_in_one_line(here, capsys):
    save_checkpoint(here / "gated.ckpt", attention="gated")
    with pytest.raises(SystemExit):
        main(["photo.png", "--checkpoint", "gated.ckpt", "--contributions"])
    assert "error: what the attention of VisionTransformer mixes does not enter" in capsys.readouterr().err


def test_the_trust_report_is_about_the_predicted_class_and_written_as_a_page(here, capsys):
    main(["photo.png", "--checkpoint", "best.ckpt", "--method", "rollout", "--trust", "--target", "dog"])
    printed = capsys.readouterr().out
    assert "note: the report is about maps of the predicted classes" in printed
    assert NOT_MEASURED not in printed
    assert "rollout does not depend on the class" in printed
    assert printed.splitlines()[-1] == "explained/trust.html: the same as a page"
    page = (here / "explained/trust.html").read_text()
    assert "best.ckpt: rollout on photo.png" in page
    assert "rollout does not depend on the class" in page


def test_explaining_many_images_shows_progress(here, monkeypatch):
    shown = []
    monkeypatch.setattr("vit.commands.explain_files.progress", lambda items, what: shown.append(what) or items)
    main(["photo.png", "--checkpoint", "best.ckpt"])
    assert shown == ["images explained"]


def test_the_help_names_methods_and_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(word in printed for word in ("--checkpoint", "--html", "--trust", "integrated_gradients", "same map"))
    assert all(f" {name} {word}" in printed for name, word in MAPS.items())


def test_without_a_checkpoint_it_takes_the_model_of_the_package_and_says_so(here, capsys):
    main(["photo.png"])
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "model: cifar10, which comes with the package; it sees 32 x 32 pixels and knows 10 classes: "
    )
    assert first.endswith("ship, truck. --checkpoint FILE takes yours")
    assert second.startswith("photo.png: ")
    assert last == "explained/sheet.png: all on one sheet"
    assert (here / "explained/photo_relevance.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--checkpoint best.ckpt", "required: IMAGE, before all options"),
        ("photo.png --checkpoint best.ckpt --smooth", "unrecognized arguments: --smooth"),
        ("nowhere.png --checkpoint best.ckpt", "no image at nowhere.png"),
        ("empty --checkpoint best.ckpt", "no images in the folder empty"),
        ("notes.txt --checkpoint best.ckpt", "cannot read image notes.txt: it is no image"),
        ("photo.png --checkpoint none.ckpt", "no model at none.ckpt"),
        ("photo.png --checkpoint notes.txt", r"notes.txt ends in .\.txt., and weights end in one of"),
        (
            "photo.png --checkpoint best.ckpt --method rolout",
            "unknown method 'rolout': choose one of attention, rollout.*did you mean rollout",
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
        (
            "photo_rollout.png photo.png --checkpoint best.ckpt --out . --method rollout",
            "photo_rollout.png would overwrite another",
        ),
        (
            "photo.png photo_gradient.png --checkpoint best.ckpt --method rollout gradient_rollout",
            "would overwrite another picture",
        ),
        (
            "photo.png --checkpoint headless.ckpt",
            "headless.ckpt has no classes to explain .num_classes 0.: take a model",
        ),
        ("photo.png --checkpoint four.ckpt", "four.ckpt takes 4 channels, and image files have 1 or 3"),
        ("photo.png --checkpoint linear.ckpt --layer 1", "never forms the matrix of attention weights"),
        ("photo.png --checkpoint best.ckpt --layer 2", r"layer .2. must be one of 2 layers, from .* to 1"),
        ("photo.png --checkpoint best.ckpt --layer 1 --head 2", r"head .2. must be one of 2 heads, from 0 to 1"),
        ("photo.png --checkpoint best.ckpt --layer -1", r"layer .-1. must be a whole number of at least 0"),
        ("photo.png --checkpoint best.ckpt --layer one", "invalid int value: 'one'"),
        ("photo.png --checkpoint best.ckpt --method gradcam --head 1", "gradcam has no head to choose"),
        ("photo.png --checkpoint best.ckpt --size 0", r"size .0. must be a positive whole number"),
        ("photo.png --checkpoint best.ckpt --format jpg", "invalid choice: 'jpg'"),
        ("photo.png --checkpoint best.ckpt --compare best.ckpt", "--compare best.ckpt is the model itself"),
        ("photo.png --checkpoint best.ckpt --compare linear.ckpt --html", "--html is about one model, and --compare"),
        ("photo.png --checkpoint best.ckpt --trust --head 1", "--trust is about whole methods"),
        ("photo.png --checkpoint linear.ckpt", "never forms the matrix of attention weights"),
    ],
)
def test_mistakes_are_reported_in_one_line(here, capsys, arguments, words):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(words, line)
    assert (here / "photo.png").read_bytes().startswith(b"\x89PNG")
