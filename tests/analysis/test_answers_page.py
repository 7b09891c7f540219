import csv
import re

import pytest
from PIL import Image

from tests.browser import opened
from vit.analysis.answers_page import head_rows, write_page, write_table
from vit.analysis.questions import Answer

HOSTILE = '<script>document.title = "hacked"</script>&amp;"'


@pytest.fixture
def answers(tmp_path):
    for name, width in (("kinds.png", 300), ("pruning.png", 1500)):
        Image.new("RGB", (width, 200), "red").save(tmp_path / name)
    return {
        "What do the heads attend to?": Answer(
            "Two are local.",
            "Before training, none.",
            {"kinds.png": "The kind of each head"},
            {"kind": [["local", "sink"], ["local"]], "entropy": [[0.5, 0.25], [1.0]]},
        ),
        f"How many can go? {HOSTILE}": Answer(
            "One.", "At random, none.", {"pruning.png": "Accuracy"}, {"importance_ablation": [[0.125, -0.5], [2.0]]}
        ),
        "Is attention low-rank?": "attention of layer 0 has negative weights",
    }


@pytest.fixture
def page(answers, tmp_path):
    command = ["python", "-m", "vit.analysis", "--checkpoint", "my runs/last.ckpt"]
    return write_page(tmp_path, "What the heads do", ["Digits: right on 90 %", HOSTILE], answers, command)


def test_a_head_is_one_row_with_the_columns_of_all_answers(answers, tmp_path):
    found = [answer for answer in answers.values() if isinstance(answer, Answer)]
    assert [(row["layer"], row["head"]) for row in head_rows(found)] == [(0, 0), (0, 1), (1, 0)]
    write_table(tmp_path / "heads.csv", found)
    with (tmp_path / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {"layer": "0", "head": "1", "kind": "sink", "entropy": "0.25", "importance_ablation": "-0.5"}


def test_every_question_has_its_answer_its_control_and_its_pictures_or_the_reason_why_not(page):
    text = page.read_text(encoding="utf-8")
    for expected in ("Two are local.", "Before training, none.", "At random, none.", "Digits: right on 90 %"):
        assert expected in text
    assert "Not measured: attention of layer 0 has negative weights" in text
    assert re.findall(r'<img src="data:image/png;base64,[^"]+" alt="([^"]+)"', text) == [
        "The kind of each head",
        "Accuracy",
    ]
    assert "python -m vit.analysis --checkpoint &#39;my runs/last.ckpt&#39;" in text


def test_texts_are_escaped(page):
    assert "<script>" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_it_needs_no_network_and_is_as_wide_as_the_window(browser, page, width, scheme):
    with opened(browser, page, viewport={"width": width, "height": 800}, color_scheme=scheme) as shown:
        assert shown.title() == "What the heads do"
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        assert shown.locator("section.question").count() == 3
        assert shown.locator("tbody tr").count() == 3
        background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(19, 20, 23)") == (scheme == "dark")
        text, control = (shown.locator(".answer dd").nth(index).inner_text() for index in (0, 1))
        assert (text, control) == ("Two are local.", "Before training, none.")
        picture = shown.locator("img").first
        assert picture.evaluate("image => image.naturalWidth") == 300
        beside = shown.locator(".answer").first.bounding_box()["x"] < shown.locator("figure").first.bounding_box()["x"]
        assert beside == (width == 1200)
