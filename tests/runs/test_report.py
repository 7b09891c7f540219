"""The report of a run: what it shows of the files in a folder, and what a browser makes of it."""

import base64
import json
import re

import pytest
from markupsafe import escape
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.browser import opened
from vit.explain.default_method import NOT_MEASURED
from vit.objectives import ViTClassifier
from vit.runs.report import CURVES, write_report
from vit.runs.tested_images import write_rows
from vit.support.share_interval import share_interval

HOSTILE = '<script>document.title = "hacked"</script>&amp;"'
PICTURES = (CURVES, *ViTClassifier.pictures)
SECTIONS = {f"{picture.name}.png": picture.title for picture in PICTURES} | {"config.yaml": "Configuration"}
SCORES = {
    "accuracy": 0.75,
    "count": 40,
    "balanced_accuracy": 0.8125,
    "top5_accuracy": None,
    "loss": 0.6,
    "calibration_error": 0.0321,
    "reliability": [],
    "classes": [
        {"name": "cat", "precision": 0.9, "recall": 0.8, "f1": 0.85, "support": 30},
        {"name": HOSTILE, "precision": 0.125, "recall": 0.625, "f1": 0.21, "support": 10},
        {"name": "never seen", "precision": None, "recall": None, "f1": None, "support": 0},
    ],
}
RESULTS = {
    "experiment": "pets",
    "data": "ImageFolder photos",
    "date": "2026-03-04T05:06:07+00:00",
    "seconds": 754.2,
    "test_accuracy": 0.75,
    "val_accuracy": 0.7,
    "epochs": 3.5,
    "parameters": 1234567,
    "devices": 1,
    "seed": 7,
    "command": "python train.py fit --config pets.yaml",
    "scores": SCORES,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a finished run."""
    monkeypatch.setattr("sys.argv", ["train.py"])
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "config.yaml").write_text(f"seed_everything: 7\nname: {HOSTILE}\n")
    for number, picture in enumerate(PICTURES):
        Image.new("RGB", (1000, 30), (40 * number, 0, 0)).save(tmp_path / f"{picture.name}.png")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").touch()
    return tmp_path


def change(folder, **changes) -> str:
    """The page after a change of the results."""
    (folder / "results.json").write_text(json.dumps(RESULTS | changes))
    return without_words(write_report(folder).read_text(encoding="utf-8"))


def without_words(text) -> str:
    """A page whose words are no buttons."""
    return re.sub(r'<button type="button" class="word"[^>]*>(.*?)</button>', r"\1", text)


def sections(text) -> list[str]:
    return re.findall(r"<(?:h2|summary)>(.*?)</", text)


def rows(text) -> list[list[str]]:
    """The cells of the table of classes, without the bars."""
    return [re.findall(r">([^<>]+)</t[hd]>", row) for row in re.findall(r"<tr>\s*<th title.*?</tr>", text, re.DOTALL)]


def test_the_page_of_a_run_has_its_figures_classes_pictures_and_commands(folder):
    path = write_report(folder)
    text = without_words(path.read_text(encoding="utf-8"))
    assert path == folder / "report.html"
    assert "<title>pets: test accuracy 75.00\u00a0%</title>" in text
    assert f"ImageFolder photos · 2026-03-04 05:06 UTC · 12 min 34 s · {folder}" in text
    values = re.findall(r'<dt class="quiet small">(.*?)</dt>\s*<dd class="value">(.*?)</dd>', text)
    assert values == [
        ("Test accuracy", "75.00\u00a0%"),
        ("Validation accuracy", "70.00\u00a0%"),
        ("Balanced accuracy", "81.25\u00a0%"),
        ("Calibration error", "3.21\u00a0%"),
    ]
    assert "<dt>Parameters</dt><dd>1,234,567</dd>" in text
    for picture in PICTURES:
        embedded = base64.b64encode((folder / f"{picture.name}.png").read_bytes()).decode()
        assert f'src="data:image/png;base64,{embedded}" alt="{picture.alt}"' in text
    commands = re.findall("<dd><pre>(.*?)</pre></dd>", text)
    checkpoint = folder / "checkpoints/last.ckpt"
    assert commands == [
        "python train.py fit --config pets.yaml",
        f"python train.py test --ckpt_path {checkpoint}",
        f"python train.py predict --ckpt_path {checkpoint} --data.root FOLDER",
        f"vit-attention explain IMAGE --checkpoint {checkpoint} --html",
        f"vit-attention explain IMAGES --checkpoint {checkpoint} --trust",
        f"vit-attention analysis --checkpoint {checkpoint}",
    ]
    assert f'</figure>\n    <p class="quiet small">{NOT_MEASURED} Measure yours by ' in text
    assert sorted(sections(text)) == sorted([*SECTIONS.values(), "3 classes, test images", "Run", "Commands"])


def test_the_class_of_the_lowest_f1_comes_first_and_one_without_images_last(folder):
    names, numbers = zip(*((row[0], row[1:]) for row in rows(write_report(folder).read_text())), strict=True)
    assert [name[:5] for name in names] == ["&lt;s", "cat", "never"]
    assert numbers == (
        ["21.0", "12.5", "62.5", "10"],
        ["85.0", "90.0", "80.0", "30"],
        ["\u2013", "\u2013", "\u2013", "0"],
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_a_missing_file_leaves_out_its_section_alone(folder, name):
    whole = sections(write_report(folder).read_text())
    (folder / name).unlink()
    left = sections(write_report(folder).read_text())
    assert left == [section for section in whole if section != SECTIONS[name]]


def test_a_folder_without_any_file_has_a_page(tmp_path):
    text = write_report(tmp_path).read_text()
    assert f"<h1>{tmp_path.name}</h1>" in text
    assert sections(text) == []


@pytest.mark.parametrize("name", RESULTS)
def test_a_value_that_is_not_known_is_no_error(folder, name):
    (folder / "results.json").write_text(json.dumps({key: value for key, value in RESULTS.items() if key != name}))
    assert "</html>" in write_report(folder).read_text()
    assert "</html>" in change(folder, **{name: None})


def test_the_interval_stands_by_the_accuracy_that_the_scores_are_of(folder):
    low, high = share_interval(0.75, 40)
    note = f"40 images; 95\u00a0% interval {100 * low:.2f} to {100 * high:.2f}\u00a0%"
    of_test, of_validation = change(folder), change(folder, test_accuracy=None, val_accuracy=0.75)
    assert of_test.index("Test accuracy<") < of_test.index(note) < of_test.index("Validation accuracy<")
    assert of_validation.index("Validation accuracy<") < of_validation.index(note)
    assert "Test accuracy<" not in of_validation
    assert "3 classes, validation images" in of_validation


@pytest.mark.parametrize("scored", ["test", "validation"])
def test_scores_that_are_no_numbers_are_of_the_images_that_were_evaluated(folder, scored):
    page = change(folder, scored=scored, test_accuracy=None, val_accuracy=None, scores=SCORES | {"accuracy": None})
    assert f"3 classes, {scored} images" in page
    assert "est accuracy<" not in page


def test_an_accuracy_stands_beside_that_of_guessing(folder):
    assert "always saying the most frequent class: 75.00\u00a0%" in change(folder)
    classes = [row | {"support": 0} for row in SCORES["classes"]]
    assert "always saying" not in change(folder, scores=SCORES | {"classes": classes})
    assert "always saying" not in change(folder, scores=SCORES | {"classes": []})


def test_of_a_picture_whose_photographs_are_known_a_dark_page_darkens_the_rest(folder):
    assert "<filter" not in change(folder)
    kept = PngInfo()
    kept.add_text("photographs", "[[0.1, 0.2, 0.5, 0.9]]")
    Image.new("RGB", (100, 100)).save(folder / "mistakes.png", pnginfo=kept)
    Image.new("RGB", (100, 100)).save(folder / "curves.png", pnginfo=kept)  # a chart, which is dark as a whole
    text = change(folder)
    assert text.count("<filter") == text.count('<figure class="photographs"') == 1
    assert '<feFlood x="0.11" y="0.21" width="0.38" height="0.68" result="place-1"/>' in text
    assert 'style="--paper: url(#paper-mistakes)"' in text


def test_images_in_groups_count_as_their_groups(folder):
    low, high = share_interval(0.75, 10)
    note = f"40 images; 95\u00a0% interval of 10 groups {100 * low:.2f} to {100 * high:.2f}\u00a0%"
    assert note in change(folder, groups={"test": 10, "val": 3})


def test_scores_of_no_image_have_no_interval(folder):
    empty = SCORES | {"accuracy": 0.0, "count": 0, "balanced_accuracy": None, "classes": SCORES["classes"][2:]}
    text = change(folder, test_accuracy=0.0, scores=empty)
    assert "interval" not in text
    assert "Balanced" not in text


def test_the_inventory_of_the_images_is_shown_as_text(folder):
    text = change(folder, inventory=["images of 2 classes in photos: 7 train", "left out: 1", "  1 hidden (.<b>)"])
    assert "Images" in sections(text)
    assert "in photos: 7 train\nleft out: 1\n  1 hidden (.&lt;b&gt;)</pre>" in text


def test_a_run_that_was_stopped_says_so_and_how_to_resume(folder):
    assert "The training was stopped" not in change(folder)
    (folder / "checkpoints/best.ckpt").touch()
    text = change(folder, stopped="KeyboardInterrupt")
    assert "The training was stopped by KeyboardInterrupt." in text
    assert f"python train.py fit --ckpt_path {folder / 'checkpoints/last.ckpt'}" in text


@pytest.mark.parametrize(("weights", "name"), [("best", "best"), ("last", "last"), (None, "best")])
def test_the_checkpoint_in_the_commands_is_the_one_that_the_run_tested(folder, weights, name):
    (folder / "checkpoints/best.ckpt").touch()
    text = change(folder, test_weights=weights)
    for command in ("test", "predict"):
        assert f"{command} --ckpt_path {folder / f'checkpoints/{name}.ckpt'}" in text


def test_the_page_of_an_evaluation_names_the_checkpoint_that_was_evaluated(folder):
    text = change(folder, checkpoint="runs/my pets/best.ckpt", command="python train.py test --ckpt_path best")
    assert "<dt>Checkpoint</dt><dd>runs/my pets/best.ckpt</dd>" in text
    assert re.findall("<dd><pre>(.*?)</pre></dd>", text) == [
        "python train.py test --ckpt_path best",
        "python train.py predict --ckpt_path &#39;runs/my pets/best.ckpt&#39; --data.root FOLDER",
        "vit-attention explain IMAGE --checkpoint &#39;runs/my pets/best.ckpt&#39; --html",
        "vit-attention explain IMAGES --checkpoint &#39;runs/my pets/best.ckpt&#39; --trust",
        "vit-attention analysis --checkpoint &#39;runs/my pets/best.ckpt&#39;",
    ]


ROWS = [
    {"file": "test/cat/7.png", "true_class": "cat", "correct": "true", "class": "cat", "probability": "0.9900"},
    {"file": f"test/cat/{HOSTILE}.png", "true_class": "cat", "correct": "false", "class": "dog", "probability": "0.75"},
    {"file": f"{'deep/' * 30}a.png", "true_class": "dog", "correct": "false", "class": "cat", "probability": "0.8125"},
]


def test_the_files_of_the_mistakes_are_listed_the_most_confident_first(folder):
    write_rows(folder / "test_images.csv", ROWS)
    text = write_report(folder).read_text()
    assert "Files of the mistakes, the most confident first" in sections(text)
    listed = text[text.index("Files of the mistakes") :]
    cells = [
        re.findall(r">([^<>]+)</t[hd]>", row) for row in re.findall(r"<tr>\s*<th title.*?</tr>", listed, re.DOTALL)
    ]
    assert cells == [
        [f"\u2026{('deep/' * 30 + 'a.png')[-47:]}", "cat", "81.2", "dog"],
        [f"\u2026{escape(f'test/cat/{HOSTILE}.png'[-47:])}", "dog", "75.0", "cat"],
    ]


def test_classes_without_images_and_the_threshold_of_two_classes_are_told(folder):
    assert '<p class="note">2 of 3 classes are in these images; none is of never seen.</p>' in change(folder)
    found = {"class": "dog", "value": 0.25, "sensitivity": 0.875, "specificity": None, "precision": 1.0}
    text = change(folder, scores=SCORES | {"threshold": found})
    assert "Threshold of dog, chosen on validation images" in sections(text)
    assert "<th>P(dog) of at least 25.0 %</th>" in text
    assert [row for row in rows(text) if row[0].endswith("ity")] == [["sensitivity", "87.5"], ["specificity", "\u2013"]]
    assert "No threshold: validation images of both classes choose it" in change(
        folder, scores=SCORES | {"threshold": None}
    )


def test_areas_are_columns_of_results_that_have_them(folder):
    assert "ROC area" not in change(folder)
    classes = [row | {"roc_auc": 0.8754, "average_precision": None} for row in SCORES["classes"]]
    text = change(folder, scores=SCORES | {"classes": classes})
    assert "<th>ROC area</th><th>PR area</th><th>images</th>" in text
    assert [row[-3:-1] for row in rows(text)] == [["0.875", "\u2013"]] * 3


def test_the_tested_file_is_told_with_its_digest(folder):
    text = change(folder, tested_file="runs/a/last.ckpt", tested_sha256="0123456789abcdef" * 4)
    assert "<dt>Tested file</dt><dd>runs/a/last.ckpt, SHA-256 0123456789abcdef\u2026</dd>" in text


def test_names_are_shown_as_text_and_no_other_file_is_needed(browser, folder):
    with opened(browser, write_report(folder)) as page:
        assert page.title() == "pets: test accuracy 75.00\u00a0%"
        assert page.locator("tbody th").first.inner_text() == HOSTILE
        page.locator("summary").click()
        assert HOSTILE in page.locator("details pre").inner_text()
        assert page.evaluate("[...document.images].every(image => image.naturalWidth == 1000)")


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_a_phone_and_a_screen_without_sideways_scrolling(browser, folder, width):
    write_rows(folder / "test_images.csv", ROWS)
    with opened(browser, write_report(folder), viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_dark_screen_has_a_dark_page(browser, folder):
    colors = []
    for scheme in ("light", "dark"):
        with opened(browser, write_report(folder), color_scheme=scheme) as page:
            colors.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colors == ["rgb(251, 250, 248)", "rgb(19, 20, 23)"]


def test_on_a_dark_screen_charts_are_dark_and_photographs_are_as_taken(browser, folder):
    with opened(browser, write_report(folder), color_scheme="dark") as page:
        filters = {
            figure.locator("img").get_attribute("alt"): figure.evaluate("box => getComputedStyle(box).filter")
            for figure in page.locator("figure").all()
        }
    assert len(filters) == len(PICTURES)
    for picture in PICTURES:
        assert (filters[picture.alt] == "none") == (picture.name in ("mistakes", "attention"))


def test_a_part_of_the_test_images_is_told_beside_their_score(folder):
    assert "200 of 10,000 test images" not in change(folder)
    assert "200 of 10,000 test images; 95" in change(folder, parts={"test": {"images": 200, "of": 10_000}})


def test_the_report_says_that_images_were_made_worse_and_that_the_training_diverged(folder):
    worse = {"made_worse": ["1,000 test images are corrupted: noise 3"], "diverged": "the loss was nan at step 7"}
    (folder / "results.json").write_text(json.dumps(RESULTS | worse))
    page = write_report(folder).read_text()
    for said in ("1,000 test images are corrupted: noise 3", "The loss was nan at step 7"):
        assert f'<p class="note">{said}.</p>' in page
