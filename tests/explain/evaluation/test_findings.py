"""The sentences of a trust report: as lines, in a notebook, and as a page."""

import pytest

from tests.browser import opened
from vit.explain.evaluation.findings import Finding, TrustReport

REPORT = TrustReport(
    [
        Finding("red", "rollout: class", "rollout does not depend on the class"),
        Finding("green", "integrated_gradients: noise", "it is <b>stable</b> at " + "a_long_name_" * 9),
        Finding("amber", "attention", "cannot tell", "about 320 images would probably decide it"),
    ],
    images=31,
    intervals=23,
)


def test_it_prints_a_line_for_each_sentence_and_a_summary():
    lines = str(REPORT).splitlines()
    assert lines[0] == "red    rollout: class               rollout does not depend on the class"
    assert lines[2].endswith("cannot tell; about 320 images would probably decide it")
    assert lines[-1].startswith("1 green, 1 amber, 1 red; measured on 31 images. All 23 intervals together hold with ")


def test_a_notebook_shows_marks_besides_colours_and_texts_as_text():
    html = REPORT._repr_html_()
    assert "&#10007;</span> red" in html  # the word has the colour of the notebook, as these are too light for letters
    assert "&#10003;</span> green" in html
    assert "<i>about 320 images would probably decide it</i>" in html
    assert "<b>stable" not in html


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_is_read_without_scrolling_sideways_in_both_schemes(browser, tmp_path, width, scheme):
    path = REPORT.save(tmp_path / "new/trust.html", subject="best.ckpt: <rollout> on cat.jpg")
    with opened(browser, path, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("header p").inner_text() == "best.ckpt: <rollout> on cat.jpg"
        assert page.locator(".level").all_inner_texts() == ["\N{BALLOT X} red", "\N{CHECK MARK} green", "! amber"]
        assert page.locator(".more").all_inner_texts() == ["About 320 images would probably decide it."]
        tops = [page.locator("li").nth(0).locator(name).bounding_box()["y"] for name in ("strong", ".text")]
        assert (tops[1] > tops[0] + 10) == (width == 400)  # below each other on a narrow screen
        light = page.evaluate("getComputedStyle(document.querySelector('.green')).color") == "rgb(0, 120, 90)"
        assert light == (scheme == "light")
