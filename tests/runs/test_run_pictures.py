from types import SimpleNamespace

import pytest
from lightning.pytorch.trainer.states import TrainerFn
from matplotlib.figure import Figure

from vit.objectives import ViTClassifier
from vit.runs.run_pictures import RunPictures, draw_curves

TRAIN = [{"epoch": 0.5, "loss": 2.0, "lr": 0.1}, {"epoch": 1.0, "loss": 1.0, "lr": 0.0}]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, of which no file is written."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_the_legend_is_outside_of_the_plots_where_it_covers_no_curve(tmp_path, drawn):
    draw_curves({"train": TRAIN, "val": []}, ViTClassifier.monitor, tmp_path / "curves.png")
    assert not any(axes.get_legend() for axes in drawn[0].axes)
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["training (augmented)"]


def test_each_thing_that_was_measured_has_a_panel_and_none_is_empty(tmp_path, drawn):
    val = [{"epoch": 1.0, "loss": 1.5, "accuracy": 0.5}]
    for points in (val, []):
        draw_curves({"train": TRAIN, "val": points}, ViTClassifier.monitor, tmp_path / "curves.png")
    with_validation, without = ([axes.get_title() for axes in figure.axes] for figure in drawn)
    assert with_validation == ["Loss", "Validation accuracy\n(last: 50.00\xa0%)", "Learning rate"]
    assert without == ["Loss", "Learning rate"]
    assert all(axes.lines for figure in drawn for axes in figure.axes)


def test_the_picture_is_written(tmp_path):
    draw_curves({"train": TRAIN, "val": []}, ViTClassifier.monitor, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_a_validation_of_a_training_has_its_own_pictures_and_one_before_it_has_none(monkeypatch):
    drawn = []
    monkeypatch.setattr(RunPictures, "_draw_images", lambda self, trainer, stage, draw: drawn.append((stage, draw)))
    module = SimpleNamespace(draw="all", draw_validation="few")
    for fn, is_check in ((TrainerFn.FITTING, True), (TrainerFn.FITTING, False), (TrainerFn.VALIDATING, False)):
        trainer = SimpleNamespace(state=SimpleNamespace(fn=fn), sanity_checking=is_check)
        RunPictures(None).on_validation_end(trainer, module)
    assert drawn == [("val", "few"), ("val", "all")]
