"""The experiment about loss over compute: laws that are fitted, the larger model, and its answers."""

import math

import claims_figures
import claims_scale
import pytest
from claims_scale import BATCH, LARGER, SETTINGS, SHARES, STEPS, WIDTHS
from claims_training import FAILS, HOLDS, OPEN

from vit.training.flop import training_flop


def scaled(law, larger=None):
    """Cells of three seeds whose loss is a law of compute, a little apart; that of the larger model may be another."""
    cells = {}
    for name, setting in SETTINGS.items():
        width = setting["width"]
        flop = claims_scale.flop_per_step(width)
        of = larger if larger and width == LARGER else law
        counts = {*STEPS, claims_scale.steps_of_equal_compute(width)}
        for seed in range(3):
            losses = {str(steps): of(flop * steps) * (1 + 0.004 * (seed - 1)) for steps in counts}
            cells[f"{name}, seed {seed}"] = {"setting": name, "seed": seed, **setting, "flop_per_step": flop}
            cells[f"{name}, seed {seed}"] |= {"losses": losses, "parameters": 1000, "tested": 359}
            cells[f"{name}, seed {seed}"]["chosen"] = min(map(str, STEPS), key=losses.__getitem__)
    return cells


def power(compute):
    """A law that halves the loss with four times the compute, down to 0.05."""
    return (compute / 1e9) ** -0.5 + 0.05


def answers(cells):
    """The answers of the two sentences."""
    return [row["answer"] for row in claims_scale.rows(cells)]


def test_a_power_of_compute_is_found_and_predicts_the_larger_model():
    assert answers(scaled(power)) == [HOLDS, HOLDS]
    first, second = claims_scale.rows(scaled(lambda compute: (compute / 1e9) ** -0.5))
    assert "exponent of the loss over compute: 0.50 (0.50 to 0.50)" in first["measured"]
    larger = (claims_scale.flop_per_step(LARGER) * STEPS[-1] / 1e9) ** -0.5
    assert second["measured"].count(f"{larger:.2f} (") == 2


def test_a_loss_that_falls_as_the_logarithm_of_compute_is_no_power():
    assert answers(scaled(lambda compute: 3 - 0.1 * math.log(compute)))[0] == FAILS


def test_a_loss_that_rises_is_no_power():
    assert claims_scale.is_power((-0.2, -0.3, -0.1), (-0.1, -0.2, -0.05)) == FAILS


def test_seeds_that_disagree_about_the_exponent_or_the_better_law_give_no_answer():
    assert claims_scale.is_power((0.2, -0.1, 0.5), (-0.1, -0.2, -0.05)) == OPEN
    assert claims_scale.is_power((0.2, 0.1, 0.3), (-0.1, -0.25, 0.05)) == OPEN


def test_a_larger_model_beside_its_prediction_is_not_predicted():
    assert answers(scaled(power, larger=lambda compute: 2 * power(compute))) == [HOLDS, FAILS]


@pytest.mark.parametrize(
    ("foreseen", "measured", "widest", "answer"),
    [
        ([0.10, 0.11, 0.12], [0.11, 0.11, 0.11], [0.2, 0.2, 0.2], HOLDS),
        ([0.10, 0.11, 0.12], [0.11, 0.11, 0.11], [0.1, 0.11, 0.12], OPEN),  # says no more than the widest
        ([0.10, 0.11, 0.12], [0.20, 0.20, 0.20], [0.3, 0.3, 0.3], FAILS),
        ([0.10, 0.11, 0.12], [0.10, 0.20, 0.30], [0.4, 0.4, 0.4], OPEN),  # beside it, as far as seeds tell not
        ([0.11], [0.11], [0.2], OPEN),
    ],
)
def test_the_interval_of_a_prediction_holds_the_measured_loss_and_not_that_of_a_smaller_model(
    foreseen, measured, widest, answer
):
    assert claims_scale.is_foreseen(foreseen, measured, widest) == answer


def test_the_larger_model_is_in_no_fit():
    cells = scaled(power)
    other = scaled(power, larger=lambda compute: 2 * power(compute))
    (_, found), (_, with_other) = (claims_scale.rows(of) for of in (cells, other))
    assert found["measured"].split(";")[0] == with_other["measured"].split(";")[0]
    assert found["measured"] != with_other["measured"]


def test_the_point_of_a_width_is_the_chosen_one_of_the_equal_steps_and_its_compute():
    losses = {"75": 0.5, "150": 0.3, "300": 0.2, "999": 0.1}
    cell = {"seed": 0, "share": 1.0, "width": 8, "flop_per_step": 10, "losses": losses, "chosen": "150"}
    assert claims_scale.best_of_widths({"one": cell}, 0, 1.0, 8) == [(1500, 0.3)]


def test_a_sentence_without_all_its_numbers_has_no_row():
    assert claims_scale.rows({}) == []
    cells = scaled(power)
    larger = f"width {LARGER}, 100.0% of the images"
    assert claims_scale.rows({name: cell for name, cell in cells.items() if cell["setting"] != larger}) == []


def test_compute_is_counted_by_torch_and_equal_within_half_a_step():
    for width in WIDTHS:
        flop = claims_scale.flop_per_step(width)
        assert flop == BATCH * training_flop(claims_scale.build(width))
        spent = flop * claims_scale.steps_of_equal_compute(width)
        assert abs(spent - STEPS[-1] * claims_scale.flop_per_step(WIDTHS[0])) <= flop / 2


def test_equal_steps_leave_out_the_trainings_of_equal_compute():
    steps = claims_scale.steps_of_equal_compute(WIDTHS[1])
    cell = {"width": WIDTHS[1], "losses": {**{str(count): 0.5 for count in STEPS}, str(steps): 0.1}}
    cell["chosen"] = str(STEPS[0])
    assert claims_scale.at_equal_steps(cell) == 0.5
    assert claims_scale.at_equal_compute(cell) == 0.1


def test_the_table_has_a_row_for_each_width_at_equal_steps_and_at_equal_compute():
    text = claims_scale.table(scaled(power))
    assert text.count(f"width {WIDTHS[0]} ") == 2
    assert text.count(f"| width {LARGER} ") == 1
    assert all(f"{share:.1%} of the images" in text for share in SHARES)
    assert "seed 0: b 0.50" in text


def test_what_is_there_is_shown_before_all_is_measured(tmp_path):
    cells = scaled(power)
    for first in (1, 10, 30, len(cells)):
        some = dict(list(cells.items())[:first])
        claims_scale.table(some)
        claims_scale.rows(some)
        claims_figures.draw_scale(some, tmp_path / "drawn.png")


def test_a_cell_has_the_test_loss_of_each_number_of_steps_of_which_the_validation_loss_chooses(monkeypatch):
    asked = []

    def loss_on(model, images, labels):
        asked.append(len(labels))
        return {143: [0.2, 0.1], 359: [0.3, 0.4]}[len(labels)][len(asked) > 2]

    monkeypatch.setattr(claims_scale, "STEPS", (1, 2))
    monkeypatch.setattr(claims_scale, "steps_of_equal_compute", lambda width: 2)
    monkeypatch.setattr(claims_scale, "loss_on", loss_on)
    cell = claims_scale.measure({"width": 12, "share": 0.125}, seed=0)
    assert cell["losses"] == {"1": 0.3, "2": 0.4}
    assert cell["chosen"] == "2"
    assert (cell["images"], cell["tested"]) == (162, 359)
