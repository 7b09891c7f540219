"""The picture of ROC and precision-recall curves: which classes have a line, a name and a mark."""

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from vit.objectives.classify.evaluation import Evaluation
from vit.objectives.classify.roc_picture import draw_curves


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draw the curves of random answers, and return the figure."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(num_classes, absent=(), shown=None, threshold=None):
        generator = torch.Generator().manual_seed(0)
        labels = torch.tensor([label for label in range(num_classes) for _ in range(9) if label not in absent])
        evaluation = Evaluation(num_classes, torch.device("cpu"))
        logits = F.one_hot(labels, num_classes) + torch.randn(len(labels), num_classes, generator=generator)
        evaluation.update(logits, labels)
        scores = evaluation.scores([f"class {number}" for number in range(num_classes)])
        targets = F.one_hot(labels, num_classes).bool()
        shown = range(num_classes) if shown is None else shown
        draw_curves(evaluation.rows["probabilities"], targets, scores, shown, "test", tmp_path / "roc.png", threshold)
        return figures[-1], scores, evaluation

    return draw


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_of_few_classes_and_their_mean_is_named_with_its_areas_outside_of_the_panels(draw):
    figure, scores, _ = draw(3)
    assert legend(figure) == [
        *(f"{row['name']}: {row['roc_auc']:.3f}, {row['average_precision']:.3f}" for row in scores["classes"]),
        f"mean: {scores['roc_auc']:.3f}, {scores['average_precision']:.3f}",
    ]
    assert [axes.get_legend() for axes in figure.axes] == [None, None]


def test_the_mean_curves_have_about_the_mean_areas(draw):
    figure, scores, _ = draw(3)
    roc, precision = (max(axes.lines, key=lambda line: line.get_linewidth()) for axes in figure.axes)
    areas = [torch.trapezoid(*map(torch.tensor, (line.get_ydata(), line.get_xdata()))) for line in (roc, precision)]
    assert areas[0].item() == pytest.approx(scores["roc_auc"], abs=0.01)
    assert areas[1].item() == pytest.approx(scores["average_precision"], abs=0.01)


def test_of_many_classes_the_lowest_areas_are_named(draw):
    figure, scores, _ = draw(30)
    lowest = sorted(scores["classes"], key=lambda row: row["roc_auc"])[:5]
    assert [text.split(":")[0] for text in legend(figure)] == [*(row["name"] for row in lowest), "mean"]
    assert len(figure.axes[1].lines) == 31


@pytest.mark.parametrize(("absent", "ending"), [([1], "class 1"), ([0, 1, 2], "3 classes")])
def test_classes_without_images_are_told_and_have_no_line(draw, absent, ending):
    figure, _, _ = draw(6, absent=absent)
    title = f"test: each class against the rest; no curve of {ending}, as none or all of the images show it"
    assert figure.get_suptitle() == title
    assert len(figure.axes[1].lines) == 6 - len(absent) + 1


def test_images_of_one_class_alone_have_an_empty_picture(draw):
    figure, _, _ = draw(3, absent=[0, 2])
    assert (figure.legends, len(figure.axes[1].lines)) == ([], 0)


def test_the_point_of_a_threshold_is_marked_in_both_panels(draw):
    figure, _, evaluation = draw(2, shown=[1], threshold=0.4)
    found = evaluation.scores(["a", "b"], 0.4)["threshold"]
    roc, precision = (axes.lines[-1].get_xydata()[0].tolist() for axes in figure.axes)
    assert roc == pytest.approx([1 - found["specificity"], found["sensitivity"]])
    assert precision == pytest.approx([found["sensitivity"], found["precision"]])
    assert legend(figure)[-1] == "threshold 40.0 %"
