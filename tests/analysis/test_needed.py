"""How many heads can go and which layers need theirs: chosen on one half of the images, and said with intervals."""

import pytest

from vit.analysis import PruningPoint, needed


def spread(share, count=100):
    """As many right images, equally many in both halves."""
    return tuple((i // 2) < round(share * count / 2) for i in range(count))


def point(left, removed, share):
    return PruningPoint(left, removed, share, 1.0, 1, 1.0, 1.0, spread(share))


def test_as_many_heads_can_go_as_one_half_allows_and_the_cost_is_that_of_the_other_half(subject, tmp_path, monkeypatch):
    def curve(model, batches, ranking, order, *, rerank, rounds, shared, seed=0):
        assert (rerank, rounds) == (False, 0)
        rows = [(5, 5), (5, 4), (5, 1), (2, 0)]  # right of 5 even and of 5 odd images
        shift = {"importance": 0, "oracle": 0, "weight": 1, "random": 1 + seed % 3}[order]
        points = []
        for left, (even, odd) in zip((15, 10, 7, 0), rows, strict=True):
            fewer = (seed % 3, shift) if left == 7 else (0, 0)  # the draws differ
            row = tuple(i // 2 < (even - fewer[0], odd - fewer[1])[i % 2] for i in range(10))
            points.append(PruningPoint(left, {}, sum(row) / 10, 1.0, 1000 + 100 * left, 1.0, 1.0, row))
        return points

    monkeypatch.setattr(needed, "pruning_curve", curve)
    drawn = {}
    monkeypatch.setattr(needed.charts, "draw_pruning", lambda curves, path: drawn.update(curves))
    answer = needed.how_many_heads_can_go(subject, tmp_path)
    assert "On one half of the images, 8 heads can go by the gradient for at most one point" in answer.found
    assert "on the other half, this costs 80.0 points (" in answer.found
    assert "7 heads left are 68.0\u00a0% of the parameters." in answer.found
    # The figure has the numbers of the text: at random, the mean over draws.
    at_half = {order: next(x.accuracy for x in points if x.heads_left == 7) for order, points in drawn.items()}
    assert f"With 7 random heads left, it is right on {100 * at_half['random']:.1f}\u00a0% (mean of 6" in answer.control
    assert at_half["random"] == pytest.approx(0.4)
    assert f"7 heads left, it is right on {100 * at_half['importance']:.1f}\u00a0%" in answer.found
    assert "which cannot be told apart from the order by the gradient (20.0 points (" in answer.control


@pytest.mark.parametrize(
    ("fallen", "expected"),
    [
        (
            {0: 0.5, 1: 0.1, 2: 0.8},
            "Layer 1 needs its attention most: without its heads, the model is right on 10.0\u00a0%. "
            "Layer 2 needs its attention least: without its heads, the model is right on 80.0\u00a0%.",
        ),
        (
            {0: 0.25, 1: 0.24, 2: 0.8},
            "Layers 0 and 1 need their attention most and cannot be told apart: without the heads of one, "
            "the model is right on 25.0\u00a0% and 24.0\u00a0%. Layer 2 needs its attention least",
        ),
        ({0: 0.2, 1: 0.8, 2: 0.79}, "Layers 1 and 2 need their attention least and cannot be told apart: without"),
        (
            {0: 0.5, 1: 0.49, 2: 0.51},
            "Layers 0, 1 and 2 cannot be told apart: without the heads of one, the model is right on 50.0\u00a0%, "
            "49.0\u00a0% and 51.0\u00a0%, in this order.",
        ),
    ],
)
def test_layers_within_their_interval_cannot_be_told_apart(subject, tmp_path, monkeypatch, fallen, expected):
    def curve(model, batches, ranking, *, step, rerank, layers, rounds, shared):
        (layer,) = layers
        assert (step, rerank, rounds) == (1, False, 0)
        return [point(15, {}, 0.9), point(10, {layer: [0, 1, 2, 3, 4]}, fallen[layer])]

    pruned, drawn = [], []
    monkeypatch.setattr(needed, "pruning_curve", curve)
    monkeypatch.setattr(needed, "prune_heads", lambda model, heads: pruned.append(heads))
    monkeypatch.setattr(needed, "accuracy", lambda *_: 0.5)
    monkeypatch.setattr(needed.charts, "draw_layers", lambda curves, anywhere, path: drawn.append(anywhere))
    answer = needed.which_layers_need_their_heads(subject, tmp_path)
    assert expected in answer.found
    assert "Without 5 random heads of all layers, the model is right on 50.0\u00a0%" in answer.control
    assert drawn == [0.5]  # which the figure shows as well
    assert [sum(len(set(heads)) for heads in each.values()) for each in pruned] == [5] * needed.DRAWS
    assert len({str(sorted(each.items())) for each in pruned}) == needed.DRAWS


@pytest.mark.parametrize(("ranked", "words"), [(0.9, "60.0 points (5"), (0.0, "30.0 points (2")])
def test_random_heads_are_below_or_above_the_order(ranked, words):
    draws = [point(5, {}, share) for share in (0.28, 0.3, 0.32) * 2]
    found = needed._apart(point(5, {}, ranked), draws)
    assert found.startswith(words)
    assert found.endswith(f"{'below' if ranked else 'above'} the order by the gradient")
