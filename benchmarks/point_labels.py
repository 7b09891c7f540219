"""Names beside the points of a plot, without overlaps."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

Point = tuple[float, float]


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
    near = [("left", 7, 0), ("right", -7, 0), ("center", 0, 11), ("center", 0, -11)]
    near += [(side, right, 1.6 * up) for side, right, up in near[2:]] + [("left", 5, 9), ("left", 5, -9)]
    for name, point in points.items():
        style = {"va": "center", "fontsize": 9, "color": "black"} | (styles or {}).get(name, {})
        style |= {"path_effects": [withStroke(linewidth=2.5, foreground="white")]}  # readable on a line of the grid
        inside = []
        for side, right, up in near + _far():
            line = {"arrowprops": {"arrowstyle": "-", "color": style["color"], "lw": 0.5, "alpha": 0.6, "shrinkB": 4}}
            has_line = math.hypot(right, up) > 20
            look = style | (line if has_line else {})
            text = axes.annotate(name, point, xytext=(right, up), textcoords="offset points", ha=side, **look)
            box = text.get_window_extent()
            text.set_visible(False)
            if axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1:
                inside.append((text, box))
                gaps = {each: _gap(box, centre) for each, centre in own_centres.items()}
                is_nearest = gaps.pop(name) < min(gaps.values(), default=math.inf)
                if (has_line or is_nearest) and not any(box.overlaps(other) for other in taken):
                    break
        else:
            text, box = inside[0] if inside else (text, box)
        text.set_visible(True)
        taken.append(box)


def _gap(box: Bbox, point: Point) -> float:
    """Return how far a point is outside a box."""
    x, y = point
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


def _far() -> list[tuple[str, int, int]]:
    """Return offsets from a point, nearer ones first: alignment, right, up."""
    return [
        ("left" if right > 0 else "right", right, up)
        for radius in range(12, 100, 8)
        for up in (radius, -radius, radius // 2, -radius // 2)
        for right in (6, -6, radius, -radius)
    ]
