"""The first picture of README."""

import re

import maps_picture
import numpy as np
from PIL import Image


def test_the_first_picture_of_the_readme_is_what_the_script_draws(tmp_path):
    link = re.search(r"!\[.*\]\((.*)\)", (maps_picture.ROOT / "README.md").read_text(encoding="utf-8"))[1]
    assert maps_picture.ROOT / link == maps_picture.PICTURE
    maps_picture.draw().save(tmp_path / "maps.png")
    kept, drawn = (np.asarray(Image.open(path), float) for path in (maps_picture.PICTURE, tmp_path / "maps.png"))
    assert kept.shape == drawn.shape
    assert abs(kept - drawn).mean() < 0.5  # machines round differently
