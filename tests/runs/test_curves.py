from vit.objectives import ViTClassifier
from vit.runs.curves import draw_curves


def test_curves_need_no_validation(tmp_path):
    train = [{"epoch": 0.5, "loss": 2.0, "lr": 0.1}, {"epoch": 1.0, "loss": 1.0, "lr": 0.0}]
    val = [{"epoch": 1.0, "loss": 1.5, "accuracy": 0.5}]
    for number, history in enumerate(({"train": train, "val": val}, {"train": train, "val": []})):
        draw_curves(history, ViTClassifier.monitor, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
