import pytest
import torch
from PIL import Image

from vit.training.evaluation import Evaluation
from vit.training.pictures import draw_confusion, draw_curves, draw_mistakes


def evaluation(num_classes: int, channels: int) -> Evaluation:
    result = Evaluation(num_classes, torch.device("cpu"))
    labels = torch.randint(0, num_classes, (57,))
    images = torch.randint(0, 256, (57, channels, 7, 5), dtype=torch.uint8)
    result.update(torch.randn(57, num_classes), labels, images)
    return result


@pytest.mark.parametrize(("num_classes", "channels"), [(3, 1), (37, 3)])
def test_the_pictures_of_an_evaluation_are_drawn(tmp_path, num_classes, channels):
    names = [f"class {number}" for number in range(num_classes)]
    for draw in (draw_confusion, draw_mistakes):
        draw(evaluation(num_classes, channels), names, "a title", tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert min(picture.size) > 200


def test_no_mistake_at_all_is_said_and_no_error(tmp_path):
    perfect = Evaluation(2, torch.device("cpu"))
    perfect.update(torch.tensor([[9.0, 0]]), torch.tensor([0]), torch.zeros(1, 1, 2, 2))
    draw_mistakes(perfect, ["a", "b"], "mistakes", tmp_path / "mistakes.png")
    assert (tmp_path / "mistakes.png").exists()


def test_curves_need_no_validation(tmp_path):
    train = [{"epoch": 0.5, "loss": 2.0, "lr": 0.1}, {"epoch": 1.0, "loss": 1.0, "lr": 0.0}]
    val = [{"epoch": 1.0, "loss": 1.5, "accuracy": 0.5}]
    for number, history in enumerate(({"train": train, "val": val}, {"train": train, "val": []})):
        draw_curves(history, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
