import pytest

from vit.training.schedule import learning_rate_factor


def test_the_rate_rises_linearly_from_zero_over_the_warm_up():
    assert [learning_rate_factor(p, 0.5, "cosine") for p in (0.0, 0.125, 0.25)] == [0.0, 0.25, 0.5]


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_rate_is_at_its_peak_after_the_warm_up_and_zero_at_the_end_and_beyond(decay):
    assert learning_rate_factor(0.2, 0.2, decay) == 1.0
    assert learning_rate_factor(1.0, 0.2, decay) == pytest.approx(0.0)
    assert learning_rate_factor(1.3, 0.2, decay) == pytest.approx(0.0)


def test_half_way_down_a_cosine_and_a_line_are_at_one_half_but_a_quarter_down_they_differ():
    assert learning_rate_factor(0.6, 0.2, "cosine") == pytest.approx(0.5)
    assert learning_rate_factor(0.6, 0.2, "linear") == pytest.approx(0.5)
    assert learning_rate_factor(0.4, 0.2, "cosine") == pytest.approx(0.8535534)
    assert learning_rate_factor(0.4, 0.2, "linear") == pytest.approx(0.75)


def test_a_constant_rate_stays_at_its_peak():
    assert learning_rate_factor(0.99, 0.2, "constant") == 1.0


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate_factor(0.0, 0.0, "linear") == 1.0
