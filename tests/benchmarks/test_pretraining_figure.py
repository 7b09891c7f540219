"""The plot of learning without labels."""

import pretraining_figure
from matplotlib.figure import Figure
from pretraining_figure import draw_pretraining, lines_of

CELLS = {
    "a": {"row": "from scratch", "share": 0.1, "training": {"test_accuracy": 0.5}},
    "b": {"row": "from scratch", "share": 0.1, "training": {"test_accuracy": 0.7}},
    "c": {"row": "mae", "share": 0.1, "training": {"test_accuracy": 0.8}, "frozen": {"knn": 0.3, "linear": 0.4}},
    "d": {"row": "untrained", "share": 1.0, "frozen": {"knn": 0.2, "linear": 0.25}},
    "e": {"row": "chosen from", "share": 0.1, "training": {"test_accuracy": 0.9}},
}


def test_a_line_has_the_accuracies_of_its_row_by_share_and_trainings_that_were_compared_have_none():
    found = {name: of_shares for name, _, of_shares in lines_of(CELLS) if of_shares}
    assert found == {
        "from scratch": {0.1: [50.0, 70.0]},
        "MaskedAutoencoder: fine-tuned": {0.1: [80.0]},
        "MaskedAutoencoder: linear probe, frozen": {0.1: [40.0]},
        "MaskedAutoencoder: neighbours, frozen": {0.1: [30.0]},
        "untrained: linear probe, frozen": {1.0: [25.0]},
        "untrained: neighbours, frozen": {1.0: [20.0]},
    }


def test_each_share_that_was_measured_has_a_panel_with_the_means(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_pretraining(CELLS, {0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}, tmp_path / "a.png")
    few, many = drawn[0].axes
    assert [few.get_title(), many.get_title()] == ["with 10 %", "with 100 %"]
    assert [text.get_text() for text in few.texts] == ["60.0", "80.0", "40.0", "30.0"]
    assert [text.get_text() for text in many.texts] == ["25.0", "20.0"]
    assert set(pretraining_figure.ROWS) >= {"mae", "sigreg", "dino"}
