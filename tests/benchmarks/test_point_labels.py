"""Names beside the points of a plot."""

import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from point_labels import label_points

CROWDED = {f"recipe {number}": (0.5 + 0.02 * (number % 3), 0.5 + 0.02 * (number // 3)) for number in range(9)}


@pytest.fixture
def axes():
    """Axes from 0 to 1 in a small figure."""
    axes = Figure(figsize=(5, 4), dpi=100).add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def boxes(axes):
    """The box of each name, by name."""
    axes.figure.draw_without_rendering()
    return {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without its line


def box_of_point(axes, point):
    """The box of the mark of a point."""
    x, y = axes.transData.transform(point)
    return Bbox.from_bounds(x - 7, y - 7, 14, 14)


def test_each_name_is_written_once_and_covers_no_point_and_no_other_name(axes):
    label_points(axes, CROWDED, avoid=[(0.7, 0.5)])
    found = boxes(axes)
    assert sorted(found) == sorted(CROWDED)
    assert len(axes.texts) == len(CROWDED)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(found.values(), 2))
    for point in (*CROWDED.values(), (0.7, 0.5)):
        assert not any(box.overlaps(box_of_point(axes, point)) for box in found.values())


def test_a_name_alone_is_right_of_its_point_and_at_the_right_border_left_of_it(axes):
    label_points(axes, {"left": (0.1, 0.2), "right": (0.99, 0.8)}, {"right": {"color": "red"}})
    found = boxes(axes)
    assert found["left"].x0 > axes.transData.transform((0.1, 0.2))[0]
    assert found["right"].x1 < axes.transData.transform((0.99, 0.8))[0]
    assert [text.get_color() for text in axes.texts] == ["black", "red"]
    assert all(text.arrow_patch is None for text in axes.texts)


def test_a_name_far_from_its_point_has_a_line_to_it(axes):
    label_points(axes, CROWDED)
    far = [text for text in axes.texts if max(map(abs, text.xyann)) > 20]
    assert far
    assert all(text.arrow_patch is not None for text in far)


def test_a_name_covers_no_legend(axes):
    axes.plot([0.5], [0.5], label="a legend that is long enough")
    axes.legend(loc="center right")
    label_points(axes, {"name": (0.5, 0.5)})
    assert not boxes(axes)["name"].overlaps(axes.get_legend().get_window_extent())


def test_a_name_that_fits_nowhere_is_written_at_the_first_place(axes):
    label_points(axes, {"a name that is longer than the axes " * 4: (0.5, 0.5)})
    (text,) = axes.texts
    assert text.xyann == (7, 0)
