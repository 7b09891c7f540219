"""Pages in one HTML file: the frame around every template."""

import pytest
from PIL import Image

from vit.support.pages import data_url, page_templates


@pytest.mark.parametrize("template", ["analysis/answers_page.html", "runs/report.html"])
def test_every_template_fills_the_frame_and_escapes_its_texts(template):
    templates = page_templates()
    templates.filters["tenths"] = str
    page = templates.get_template(template).render(title="<i>", name="<i>", subtitle=[], pictures={})
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert page.count("&lt;i&gt;") == 2  # in the title of the window and on the page
    assert "<i>" not in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert style.count("{") == style.count("}")


@pytest.mark.parametrize("shown", ["{{ name }}", "{{ [name] | join('·') }}"])
def test_names_that_act_or_are_no_text_are_shown_and_can_be_written(shown, tmp_path):
    page = page_templates().from_string(shown).render(name="a\x1b[2J<\udcff>\nb")
    assert page == r"a\x1b[2J&lt;\udcff&gt;" + "\nb"
    (tmp_path / "page.html").write_text(page, encoding="utf-8")


def test_a_picture_is_held_by_its_url(tmp_path):
    Image.new("L", (2, 3)).save(tmp_path / "picture.png")
    assert data_url(tmp_path / "picture.png").startswith("data:image/png;base64,iVBOR")
