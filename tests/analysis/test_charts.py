import pytest
import torch

from vit.analysis import PruningPoint, charts, describe_heads, projection_ranks, prune_heads
from vit.analysis.probes import Probe, Probes
from vit.analysis.truncation import RankPoint


@pytest.fixture
def table(ours, images):
    """Of layers with 3, 5 and 2 heads."""
    return describe_heads(prune_heads(ours, {0: [0, 3], 2: [1, 2, 3]}), images)


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_distances_stand_beside_that_of_uniform_attention(drawn, table):
    (axes,) = drawn(charts.draw_distances, table).axes
    reference, dots = axes.lines
    assert set(reference.get_ydata()) == {table.uniform_distance}
    assert list(dots.get_xdata()) == [0] * 3 + [1] * 5 + [2] * 2
    assert list(dots.get_ydata()) == [head.distance for head in table.heads]
    assert axes.get_ylim()[1] > max(dots.get_ydata())
    assert "pixels" in axes.get_ylabel()


def test_the_heads_before_training_are_drawn_beside_those_after(drawn, table, ours, images):
    before = describe_heads(ours, images)
    (axes,) = drawn(lambda trained, path: charts.draw_distances(trained, path, before), table).axes
    _, grey, dots = axes.lines
    assert list(grey.get_ydata()) == [head.distance for head in before.heads]
    assert list(dots.get_ydata()) == [head.distance for head in table.heads]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["one head", "one head before training", "uniform attention"]


def test_every_kind_has_its_colour_and_every_head_its_entropy(drawn, table):
    figure = drawn(charts.draw_kinds, table)
    (axes,) = figure.axes
    assert texts(axes) == [f"{head.entropy:.2f}" for head in table.heads]
    cells = axes.images[0].get_array()
    assert cells.shape == (3, 5)
    for head in table.heads:
        assert list(charts.KIND_COLORS)[int(cells[head.layer, head.head])] == head.kind
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(charts.KIND_COLORS)


@pytest.mark.parametrize(
    ("lowest", "highest", "limits", "shown"),
    [
        (0.1, 1.0, (0, 1), ["0.1", "1.0"]),
        (-0.2, 1.0, (-1, 1), ["-0.2", "1.0"]),
        (-0.5, 0.01, (-0.5, 0.5), ["-0.50", "0.01"]),
        (-0.0004, 0.88, (-0.88, 0.88), ["0.00", "0.88"]),  # and not -0.00
        (0.0, 0.00021, (0, 0.00021), ["0.00000", "0.00021"]),
    ],
)
def test_colours_of_importance_are_white_at_zero_and_cover_all_values(drawn, lowest, highest, limits, shown):
    importance = [torch.tensor([lowest, highest]), torch.empty(0), torch.tensor([lowest])]
    axes, bar = drawn(charts.draw_importance, importance, "rise, nats").axes
    assert texts(axes) == [*shown, shown[0]]
    assert bar.get_ylabel() == "rise, nats"
    assert axes.images[0].get_clim() == pytest.approx(limits)


def test_layers_of_many_heads_are_drawn_without_numbers(drawn):
    axes, _ = drawn(charts.draw_importance, [torch.rand(24)] * 2, "nats").axes
    assert texts(axes) == []


def test_pruning_shows_the_cost_of_every_order(drawn):
    def points(accuracy):
        return [PruningPoint(left, {}, accuracy, 1.0, 1, 1.0, 1.0, ()) for left in (10, 5, 0)]

    curves = {"importance": points(0.9), "oracle": points(0.8), "random": points(0.2)}
    (cost,) = drawn(charts.draw_pruning, curves).axes
    assert [list(line.get_xdata()) for line in cost.lines] == [[10, 5, 0]] * 3
    assert [line.get_ydata()[0] for line in cost.lines] == [90, 80, 20]
    assert cost.get_xlim()[0] > cost.get_xlim()[1]
    assert cost.get_title() == "Accuracy as heads are removed, the least important first"
    assert len({line.get_color() for line in cost.lines}) == len({line.get_marker() for line in cost.lines}) == 3
    labels = [text.get_text() for text in cost.get_legend().get_texts()]
    assert labels == ["by gradient of the gate", "by loss without the head", "at random (mean of draws)"]


def test_layers_have_a_line_each_over_the_heads_left_in_them(drawn):
    def points(layer, accuracies):
        steps = enumerate(accuracies)
        return [
            PruningPoint(9, {layer: list(range(n))} if n else {}, value, 1.0, 1, 1.0, 1.0, ()) for n, value in steps
        ]

    (axes,) = drawn(charts.draw_layers, {0: points(0, [0.9, 0.5]), 1: points(1, [0.9, 0.8, 0.7])}, 0.25).axes
    *lines, control = axes.lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 0], [2, 1, 0]]
    assert [list(line.get_ydata()) for line in lines] == [[90, 50], [90, 80, 70]]
    assert set(control.get_ydata()) == {25}
    assert [line.get_label() for line in axes.lines] == [
        "layer 0",
        "layer 1",
        "as many random heads of all layers removed",
    ]
    assert axes.get_xlim()[0] > axes.get_xlim()[1]
    _, bar = drawn(charts.draw_layers, {layer: points(layer, [0.9, 0.5]) for layer in range(9)}, 0.25).axes
    assert bar.get_ylabel() == "layer"  # of more lines than can be named


def test_truncation_stands_beside_random_subspaces_and_uniform_attention(drawn):
    points = [RankPoint(1, 0.4, 0.1, ()), RankPoint(4, 0.8, 0.2, ()), RankPoint(17, 0.9, 0.9, ())]
    (axes,) = drawn(charts.draw_truncation, points, 0.3).axes
    best, random, uniform = axes.lines
    assert list(best.get_xdata()) == list(random.get_xdata()) == [1, 4, 17]
    assert list(best.get_ydata()) == [40, 80, 90]
    assert list(random.get_ydata()) == [10, 20, 90]
    assert set(uniform.get_ydata()) == {30}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "17"]


def test_ranks_of_projections_stand_beside_those_before_training(drawn, ours, timms):
    trained, untrained = projection_ranks(ours), projection_ranks(timms)
    for axes, name in zip(
        drawn(charts.draw_ranks, trained, untrained).axes, ("shared_query_key", "shared_value_output"), strict=True
    ):
        for line, ranks in zip(axes.lines, (trained, untrained), strict=False):
            assert list(line.get_ydata()) == [layer.effective_ranks()[name].item() for layer in ranks]
        assert set(axes.lines[2].get_ydata()) == {40}


def test_probes_show_layers_before_and_after_training_and_each_head_in_its_layer(drawn):
    probes = [Probes([Probe(v, v + 0.1, v + 0.2) for v in (0.1, 0.2, 0.3)], [[Probe(0.5, 0.6, 0.7)] * 2] * 2)]
    probes.append(Probes([Probe(0.0, 0.0, -0.1)] * 3, []))
    for axes, shift in zip(drawn(charts.draw_probes, *probes).axes, (0, 0.1, 0.2), strict=True):
        assert axes.get_ylim()[0] < min(0, *(min(line.get_ydata()) for line in axes.lines))
        trained, untrained, heads = axes.lines
        assert list(trained.get_ydata()) == pytest.approx([0.1 + shift, 0.2 + shift, 0.3 + shift])
        assert len(untrained.get_ydata()) == 3
        assert list(heads.get_xdata()) == [0.5, 0.5, 1.5, 1.5]
        assert list(heads.get_ydata()) == pytest.approx([0.5 + shift] * 4)


def test_attention_to_rare_patches_stands_beside_that_of_another_image(drawn):
    own, others = (
        [torch.tensor([0.5, 0.25]), torch.empty(0), torch.tensor([-0.5])],
        [torch.zeros(2), torch.ones(0), torch.zeros(1)],
    )
    (axes,) = drawn(charts.draw_rare, own, others).axes
    _, first, second = axes.lines
    assert list(first.get_ydata()) == [0.5, 0.25, -0.5]
    assert [round(place) for place in first.get_xdata()] == [0, 0, 2]
    assert list(second.get_ydata()) == [0, 0, 0]
    assert all(a < b for a, b in zip(first.get_xdata(), second.get_xdata(), strict=True))


def test_positions_are_bars_beside_chance(drawn):
    accuracies = {"own": 0.9, "mean": 0.2, "shuffled": 0.1, "larger": 0.8}
    (axes,) = drawn(charts.draw_positions, accuracies, 0.15).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([90, 80, 10, 20])
    assert texts(axes) == ["90.0", "80.0", "10.0", "20.0"]
    assert set(axes.lines[0].get_xdata()) == {15}


def test_maps_of_offsets_have_the_numbers_of_their_layers_without_layers_that_lost_all_heads(drawn, ours, images):
    table = describe_heads(prune_heads(ours, {0: range(5), 2: [1]}), images)
    figure = drawn(charts.draw_offsets, table)
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == ["layer 1", "layer 2"]


def test_each_head_has_a_map_of_offsets_with_itself_in_the_middle(drawn, table):
    figure = drawn(charts.draw_offsets, table)
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 10
    assert [axes.get_title() for axes in figure.axes[:5]] == [f"head {head}" for head in range(5)]
    torch.testing.assert_close(torch.tensor(maps[4].images[0].get_array()), table.offset_maps[1][1].log2())
    left, right, bottom, top = maps[0].images[0].get_extent()
    assert (left, right, bottom, top) == (-4.5, 4.5, 2.5, -2.5)
