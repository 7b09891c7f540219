import pytest
import torch
from PIL import Image

from vit.support.captioned import draw_captioned, trim_name, trim_names


@pytest.mark.parametrize(("count", "across"), [(1, 1), (7, 7), (8, 8), (9, 5), (10, 5), (16, 8)])
def test_rows_are_as_even_as_can_be(count, across, tmp_path):
    images, path = [torch.zeros(1, 2, 2, dtype=torch.uint8)] * count, tmp_path / "picture.png"
    draw_captioned(images, ["a"] * count, ["black"] * count, "Title", path, across=8, width=0.5, fontsize=8)
    with Image.open(path) as picture:
        assert picture.width == across * 60  # 120 dots an inch


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("cat", "cat"),
        ("a" * 11, "aaaaaaa..."),
        ("\u6c49\u5b57\u732b\u72d7\u9c7c", "\u6c49\u5b57\u732b\u72d7\u9c7c"),
        ("\u6c49\u5b57\u732b\u72d7\u9c7c\u9e1f", "\u6c49\u5b57\u732b..."),
    ],
)
def test_a_name_is_cut_to_its_width_in_which_chinese_letters_count_twice(name, cut):
    assert trim_name(name, 10) == cut


def test_names_that_would_be_equal_keep_both_ends():
    assert trim_names(["class number one", "class number two", "cat"], 10) == ["clas...one", "clas...two", "cat"]
    assert trim_names(["class number one", "another name", "cat"], 10) == ["class n...", "another...", "cat"]
