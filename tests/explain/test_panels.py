"""Pictures of panels: no pixel is resampled, no text is cut."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from vit.explain.panels import SHEET_LOOK, Bar, Panel, draw_panels, wrap

LONG = "a_very_long_name_of_a_file_that_no_blank_divides_" * 3


def pixels_of(path):
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB")))


def panel(height, width, **words):
    return Panel(torch.randint(0, 256, (3, height, width), dtype=torch.uint8), **({"title": "cat (93 %)"} | words))


def inked(part):
    return bool((part != 255).any())


@pytest.mark.parametrize(("height", "width"), [(401, 611), (997, 101), (53, 1013)])
def test_each_pixel_of_an_image_is_one_of_the_png_file(tmp_path, height, width):
    one = panel(height, width, subtitle="by rollout", caption="seen", bar=Bar("share", ("0", "1", "2")))
    drawn = draw_panels([[one]])
    shown = pixels_of(drawn.save(tmp_path / "picture.png"))
    left, top, right, bottom = drawn.boxes[0]
    assert (right - left, bottom - top) == (width, height)
    assert torch.equal(shown[top:bottom, left:right].permute(2, 0, 1), one.pixels)
    assert inked(shown[:top])
    assert inked(shown[bottom:])


def test_every_text_stays_inside_however_long_it_is(tmp_path):
    words = {"subtitle": LONG, "caption": "word " * 60, "caution": LONG, "bar": Bar("unit " * 20, ("0", "1", "2"))}
    drawn = draw_panels([[panel(300, 400, title=LONG, **words), panel(300, 400)]], SHEET_LOOK, title=LONG)
    shown = pixels_of(drawn.save(tmp_path / "picture.png"))
    assert not any(inked(edge) for edge in (shown[:3], shown[-3:], shown[:, :3], shown[:, -3:]))


def test_panels_of_a_row_begin_at_one_height_and_rows_do_not_overlap():
    rows = [[panel(50, 80, title=LONG), panel(80, 30)], [panel(20, 80, caption=LONG)]]
    (_, top, _, first), (_, other, _, second), (_, below, _, _) = draw_panels(rows, SHEET_LOOK).boxes
    assert top == other
    assert below > max(first, second)


def test_a_title_of_the_whole_takes_room_above_the_panels_for_each_of_its_lines():
    titles = ("", "why cat?", "why cat? " * 9)
    tops = [draw_panels([[panel(50, 80)]], SHEET_LOOK, title=title).boxes[0][1] for title in titles]
    assert tops[0] < tops[1] < tops[2]


def test_the_lines_of_a_unit_stand_below_each_other_beside_the_bar(tmp_path):
    one = panel(300, 500, bar=Bar("share of the largest value, in words that take three lines beside the bar", "012"))
    drawn = draw_panels([[one]])
    shown = pixels_of(drawn.save(tmp_path / "picture.png"))
    left, top, right, bottom = drawn.boxes[0]
    assert torch.equal(shown[top:bottom, left:right].permute(2, 0, 1), one.pixels)  # no line is drawn over the image
    inked_rows = (shown[bottom:, (left + right) // 2 :] != 255).any(dim=2).any(dim=1)
    assert (inked_rows[1:] > inked_rows[:-1]).sum() >= 2  # lines of text


def test_letters_keep_their_size_relative_to_the_panel(tmp_path):
    small, large = (draw_panels([[panel(side * 2, side * 3)]]).save(tmp_path / f"{side}.png") for side in (100, 400))
    (rows, columns, _), (more_rows, more_columns, _) = (pixels_of(path).shape for path in (small, large))
    assert more_rows / rows == pytest.approx(4, rel=0.03)
    assert more_columns / columns == pytest.approx(4, rel=0.03)


def test_drawings_hold_the_image_whole_and_say_what_they_show(tmp_path):
    one = panel(60, 90)
    drawn = draw_panels([[one]], description="rollout of cat.jpg")
    svg = drawn.save(tmp_path / "picture.svg").read_text()
    assert "rollout of cat.jpg" in svg
    images = [base64.b64decode(part) for part in re.findall(r"data:image/png;base64,([^\"]+)\"", svg)]
    found = [torch.from_numpy(np.array(Image.open(io.BytesIO(image)).convert("RGB"))) for image in images]
    upright = [each.flip(0).permute(2, 0, 1) for each in found]  # SVG's rows start at the bottom here
    assert any(torch.equal(each, one.pixels) for each in upright)
    assert drawn.save(tmp_path / "picture.pdf").read_bytes().startswith(b"%PDF")


def test_a_notebook_shows_the_picture_with_its_description_and_no_wider_than_its_cell():
    drawn = draw_panels([[panel(20, 30)]], description='rollout of "cat".jpg')
    page = drawn._repr_html_()
    assert 'alt="rollout of &quot;cat&quot;.jpg"' in page
    assert "max-width: 100%" in page
    width, height = Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", page)[1]))).size
    assert repr(drawn).startswith(f"<Picture of {width} x {height} pixels, rollout of")


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "picture.PNG.txt"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no picture that can be written: choose png, svg or pdf"):
        draw_panels([[panel(20, 30)]]).save(tmp_path / name)


def test_names_in_other_scripts_and_dollars_are_drawn(tmp_path):
    draw_panels([[panel(20, 30, title="漢字 $x$ عربي \x07", caption="a_$b$")]]).save(tmp_path / "picture.png")


def test_lines_break_at_blanks_and_not_at_no_break_spaces():
    assert wrap("one two\nthree", 1000, 10) == ["one two", "three"]
    assert wrap("12\u00a0x\u00a012 px", 45, 10) == ["12\u00a0x\u00a012", "px"]
    assert "".join(wrap(LONG, 100, 10)) == LONG
    assert wrap("wide", 1, 10) == ["w", "i", "d", "e"]
