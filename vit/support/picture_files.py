"""Files of plots, and where the photographs in them are."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from vit.support.files import replacing

PLACES = "photographs"  # the entry of a PNG file that says where its photographs are


def save_figure(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure to a file, whole or not at all; the options are those of ``Figure.savefig``."""
    path = Path(path)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        figure.savefig(file, format=path.suffix[1:] or None, **options)


def save_photographs(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure of photographs; its PNG file says where they are, so that a dark page can darken the rest."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # places the axes
    whole = figure.bbox
    boxes = [image.get_window_extent() for axes in figure.axes for image in axes.images]
    places = [
        [box.x0 / whole.width, 1 - box.y1 / whole.height, box.x1 / whole.width, 1 - box.y0 / whole.height]
        for box in boxes
    ]
    shares = json.dumps([[round(share, 4) for share in place] for place in places])
    save_figure(figure, path, **options, **({"metadata": {PLACES: shares}} if Path(path).suffix == ".png" else {}))


def photographs_in(picture: Path) -> list[list[float]]:
    """Return left, top, right and bottom of each photograph in a PNG file, as shares of its size; [] if not known.

    The outermost pixels, which may be blended with the paper around, are left out.
    """
    with Image.open(picture) as opened:
        across, down = (1 / side for side in opened.size)
        places = json.loads(opened.info.get(PLACES, "[]"))
    return [[left + across, top + down, right - across, bottom - down] for left, top, right, bottom in places]
