"""Files of figures say where their photographs are."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vit.support.picture_files import photographs_in, save_photographs


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_the_file_of_a_figure_says_where_its_photographs_are(tmp_path, layout):
    figure = Figure(figsize=(4, 3), layout=layout)
    axes = figure.subplots()
    axes.set_title("letters")
    red = np.zeros((2, 2, 3))
    red[..., 0] = 1.0
    axes.imshow(red, extent=(1, 2, 4, 3))
    axes.imshow(red, extent=(2.5, 5, 6, 3))
    axes.set(xlim=(0, 6), ylim=(8, 0), aspect="auto")
    save_photographs(figure, tmp_path / "figure.png", dpi=100)
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB"))
    is_red = (pixels == (255, 0, 0)).all(axis=-1)
    found = photographs_in(tmp_path / "figure.png")
    assert len(found) == 2
    inside = np.zeros_like(is_red)
    for left, top, right, bottom in found:
        rows, columns = slice(round(300 * top), round(300 * bottom)), slice(round(400 * left), round(400 * right))
        inside[rows, columns] = True
        assert is_red[rows, columns][2:-2, 2:-2].all()
    assert (is_red & ~inside).mean() < 0.01


def test_other_pictures_have_no_known_photographs_and_other_formats_are_written(tmp_path):
    Image.new("RGB", (2, 3)).save(tmp_path / "plain.png")
    assert photographs_in(tmp_path / "plain.png") == []
    save_photographs(Figure(), tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").exists()
