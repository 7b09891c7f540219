from matplotlib.figure import Figure

from vit.objectives import ViTClassifier
from vit.runs.curves import draw_curves


def test_the_legend_is_outside_of_the_plots_where_it_covers_no_curve(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    train = [{"epoch": 0.5, "loss": 2.0, "lr": 0.1}, {"epoch": 1.0, "loss": 1.0, "lr": 0.0}]
    draw_curves({"train": train, "val": []}, ViTClassifier.monitor, tmp_path / "curves.png")
    assert [axes.get_legend() for axes in figures[0].axes] == [None] * 3
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["training (augmented)"]


def test_curves_need_no_validation(tmp_path):
    train = [{"epoch": 0.5, "loss": 2.0, "lr": 0.1}, {"epoch": 1.0, "loss": 1.0, "lr": 0.0}]
    val = [{"epoch": 1.0, "loss": 1.5, "accuracy": 0.5}]
    for number, history in enumerate(({"train": train, "val": val}, {"train": train, "val": []})):
        draw_curves(history, ViTClassifier.monitor, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
