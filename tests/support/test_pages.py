"""Pages in one HTML file: the frame around every template."""

import pytest
from PIL import Image

from vit.glossary import EVERYWHERE, TRUST
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


def test_the_first_label_of_a_word_is_a_button_that_names_its_meaning():
    shown = page_templates(TRUST, EVERYWHERE).from_string(
        "{% extends 'support/frame.html' %}{% block page %}"
        "{{ explained('Faith') }}|{{ explained('faith') }}|{{ explained('<b>') }}|{{ explained('class') }}"
        "{% endblock %}"
    )
    page = shown.render()
    body = page[page.index("<main>") : page.index("</main>")]
    button = '<button type="button" class="word" popovertarget="{0}" aria-describedby="{0}">{1}</button>'
    labels = [button.format("word-0", "Faith"), "faith", "&lt;b&gt;", button.format("word-1", "class")]
    assert "|".join(labels) in body
    assert f'<div class="meaning" id="word-0" popover><strong>Faith</strong>: {TRUST["faith"]}</div>' in body
    assert body.count('class="meaning"') == 2


def test_a_page_without_words_has_no_list_of_meanings():
    page = page_templates().from_string("{% extends 'support/frame.html' %}{% block page %}a{% endblock %}").render()
    assert "<aside" not in page
