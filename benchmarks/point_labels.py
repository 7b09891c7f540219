"""Names beside the points of a plot, without overlaps."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

Point = tuple[float, float]
Place = tuple[str, float, float]  # the side of a text that is at the place, and its offset in points: right, up

BESIDE: tuple[Place, ...] = (("left", 7, 0), ("right", -7, 0))
ABOVE: tuple[Place, ...] = (("center", 0, 11), ("center", 0, -11))
NEAR = (*BESIDE, *ABOVE, *((side, right, 1.6 * up) for side, right, up in ABOVE), ("left", 5, 9), ("left", 5, -9))


def label_points(
    axes: Axes,
    points: Mapping[str, Point],
    styles: Mapping[str, dict[str, Any]] | None = None,
    avoid: Iterable[Point] = (),
) -> None:
    """Write each name where it covers no point and no other name: beside its point, or farther away with a line to it.

    A name without a line is nearer to its own point than to any other. If no such place is left in the axes, a name
    covers others, at the first place that is inside.

    Args:
        axes: The axes of the points; limits and scales must be set.
        points: The points by name.
        styles: Text style by name, such as the colour; the default is black, 9 points.
        avoid: Further places that no name may cover.
    """
    axes.figure.draw_without_rendering()
    own_centres = dict(zip(points, axes.transData.transform([*points.values()]), strict=True))
    centres = axes.transData.transform([*points.values(), *avoid])
    taken = [Bbox.from_bounds(x - 7, y - 7, 14, 14) for x, y in centres]
    taken += [legend.get_window_extent() for legend in [axes.get_legend()] if legend]
    for name, point in points.items():
        style = {"va": "center", "fontsize": 9, "color": "black"} | (styles or {}).get(name, {})
        style |= {"path_effects": [withStroke(linewidth=2.5, foreground="white")]}  # readable on a line of the grid

        def is_free(box: Bbox, place: Place, own: str = name) -> bool:
            gaps = {each: _gap(box, centre) for each, centre in own_centres.items()}
            is_nearest = gaps.pop(own) < min(gaps.values(), default=math.inf)
            return (_has_line(place) or is_nearest) and not any(box.overlaps(other) for other in taken)

        taken.append(_write_where_free(axes, name, point, style, is_free))


def _write_where_free(
    axes: Axes, name: str, point: Point, style: dict[str, Any], is_free: Callable[[Bbox, Place], bool]
) -> Bbox:
    """Write a name at the first place that is free, else at the first that is inside; return the box of the text."""
    inside = []
    for place in (*NEAR, *_far()):
        text = _write(axes, name, point, style, place)
        box = _box_of(text)
        if axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1:
            if is_free(box, place):
                return box
            inside.append(place)
        text.remove()
    return _box_of(_write(axes, name, point, style, (inside or NEAR)[0]))


def _box_of(text: Annotation) -> Bbox:
    text.get_window_extent()  # moves the text to its place; this box would include the line
    return Text.get_window_extent(text)


def _write(axes: Axes, name: str, point: Point, style: dict[str, Any], place: Place) -> Annotation:
    side, right, up = place
    line = {"arrowstyle": "-", "color": style["color"], "lw": 0.5, "alpha": 0.6, "shrinkB": 4}
    look = style | ({"arrowprops": line} if _has_line(place) else {})
    return axes.annotate(name, point, xytext=(right, up), textcoords="offset points", ha=side, **look)


def _has_line(place: Place) -> bool:
    return math.hypot(*place[1:]) > 20


def _gap(box: Bbox, point: Point) -> float:
    """Return how far a point is outside a box."""
    x, y = point
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


def _far() -> list[Place]:
    """Return places farther away, nearer ones first."""
    return [
        ("left" if right > 0 else "right", right, up)
        for radius in range(12, 100, 8)
        for up in (radius, -radius, radius // 2, -radius // 2)
        for right in (6, -6, radius, -radius)
    ]
