import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from PIL import Image

from vit.data.module import ImageSet
from vit.objectives import ViTClassifier
from vit.objectives.classify import pictures as classification_pictures
from vit.objectives.classify.evaluation import Evaluation
from vit.objectives.classify.pictures import draw_classes, draw_confusion, draw_mistakes, draw_reliability


@pytest.fixture
def drawn(monkeypatch):
    """The figures saved."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *rest, **kw: (figures.append(figure), save(figure, *rest, **kw))
    )
    return figures


def evaluation(num_classes: int, channels: int) -> Evaluation:
    result = Evaluation(num_classes, torch.device("cpu"))
    labels = torch.randint(0, num_classes, (57,))
    result.update(torch.randn(57, num_classes), labels)
    return result


def images(channels: int = 1, files: list[str] | None = None) -> ImageSet:
    pixels = torch.randint(0, 256, (57, channels, 7, 5), dtype=torch.uint8)
    return ImageSet(pixels, torch.zeros(57, dtype=torch.long), files)


@pytest.mark.parametrize(("num_classes", "channels"), [(3, 1), (37, 3)])
def test_the_pictures_of_an_evaluation_are_drawn(tmp_path, num_classes, channels):
    names = [f"class {number}" for number in range(num_classes)]
    found = evaluation(num_classes, channels)
    for draw, told in ((draw_confusion, ()), (draw_mistakes, (images(channels),))):
        draw(found, names, *told, "a title", tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert min(picture.size) > 200


def test_no_mistake_at_all_is_said_and_no_error(tmp_path):
    perfect = Evaluation(2, torch.device("cpu"))
    perfect.update(torch.tensor([[9.0, 0]]), torch.tensor([0]))
    draw_mistakes(perfect, ["a", "b"], images(), "mistakes", tmp_path / "mistakes.png")
    assert (tmp_path / "mistakes.png").exists()


def row(name, precision, recall, f1, support):
    return {"name": name, "precision": precision, "recall": recall, "f1": f1, "support": support}


CLASSES = [
    row("easy", 0.9, 1.0, 0.95, 1234),
    row("not in the set", 0.0, None, None, 0),
    row("hard" * 10, 0.2, 0.4, 0.27, 5),
    row("never predicted", None, 0.0, 0.0, 7),
]


def points(line) -> dict[int, float]:
    """The values of the dots of a line, by their row."""
    return {y: x for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if x == x}


def test_classes_are_dots_from_the_lowest_f1_to_the_highest_with_their_numbers_of_images(drawn, tmp_path):
    draw_classes({"classes": CLASSES}, "a title", tmp_path / "classes.png")
    (axes,) = drawn[0].axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["never predicted (7)", f"{'hard' * 6}har... (5)", "easy (1,234)", "not in the set (0)"]
    assert axes.get_ylim() == (3.5, -0.5)  # the first row on top
    found = {line.get_label(): points(line) for line in axes.lines}
    assert found == {
        "precision": {1: 20, 2: 90},
        "recall": {0: 0, 1: 40, 2: 100},
        "F1": {0: 0, 1: 27, 2: 95},
    }
    assert axes.get_title() == "a title"


def test_of_many_classes_those_of_the_lowest_f1_are_drawn(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(classification_pictures, "MOST_CLASSES", 2)
    draw_classes({"classes": CLASSES}, "a title", tmp_path / "classes.png")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["never predicted (7)", f"{'hard' * 6}har... (5)"]
    assert axes.get_title() == "a title: the 2 of the lowest F1 of 4"


def test_reliability_is_accuracy_over_confidence_where_there_are_images(drawn, tmp_path):
    bins = [{"confidence": None, "accuracy": None, "count": 0}] * 3
    bins[1:] = [{"confidence": 0.5, "accuracy": 0.25, "count": 4}, {"confidence": 0.9, "accuracy": 1.0, "count": 3}]
    scores = {"reliability": bins, "calibration_error": 0.1857}
    draw_reliability(scores, "a title", tmp_path / "reliability.png")
    above, below = drawn[0].axes
    _, dots = above.lines
    assert list(dots.get_xdata()) == [50, 90]
    assert list(dots.get_ydata()) == [25, 100]
    assert [bar.get_height() for bar in below.patches] == [0, 4, 3]
    assert [bar.get_x() for bar in below.patches] == pytest.approx([0, 100 / 3, 200 / 3])
    assert above.get_title() == "a title: calibration error (ECE) 18.57 %"
    assert (above.get_legend(), len(drawn[0].legends)) == (None, 1)  # outside, where it covers no dot


def test_an_evaluation_without_images_has_pictures(tmp_path):
    empty = Evaluation(3, torch.device("cpu"))
    scores = empty.scores(["a", "b", "c"])
    draw_classes(scores, "a title", tmp_path / "classes.png")
    draw_reliability(scores, "a title", tmp_path / "reliability.png")


def test_dollar_signs_in_names_are_text(tmp_path):
    name = "$_$"  # no formula
    one = Evaluation(2, torch.device("cpu"))
    one.update(torch.tensor([[9.0, 0]]), torch.tensor([1]))
    draw_confusion(one, [name, name], "a title", tmp_path / "confusion.png")
    draw_mistakes(one, [name, name], images(), "a title", tmp_path / "mistakes.png")
    draw_classes(one.scores([name, name]), "a title", tmp_path / "classes.png")


def test_a_mistake_has_its_predicted_and_its_true_class_cut_to_its_width(drawn, tmp_path):
    one = Evaluation(2, torch.device("cpu"))
    one.update(torch.tensor([[0, 9.0]]), torch.tensor([0]))
    draw_mistakes(one, ["seventeen letters", "eighteen letters !"], images(), "mistakes", tmp_path / "mistakes.png")
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.texts] == [
        "mistakes",
        "image 0\neighteen lette... (100 %)\ntrue: seventeen letters",
    ]


def test_a_confusion_has_percent_and_number_of_images_of_each_pair(drawn, tmp_path):
    one = Evaluation(2, torch.device("cpu"))
    labels = torch.tensor([0] * 1200 + [1] * 3)
    one.update(9.0 * F.one_hot(torch.where(torch.arange(1203) < 4, 1 - labels, labels), 2), labels)
    draw_confusion(one, ["cat", "dog"], "a title", tmp_path / "confusion.png")
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in axes.texts] == ["100 %", "1,196", "< 1 %", "4", "100 %", "3"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]


@pytest.mark.parametrize("num_classes", [21, 100])
def test_a_confusion_of_more_classes_has_names_alone(monkeypatch, tmp_path, num_classes):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    names = [f"class {number}" for number in range(num_classes)]
    draw_confusion(evaluation(num_classes, 1), names, "a title", tmp_path / "confusion.png")
    axes = drawn[0].axes[0]
    assert not axes.texts
    assert [label.get_text() for label in axes.get_yticklabels()] == names


@pytest.mark.parametrize(("num_classes", "is_there"), [(100, True), (101, False)])
def test_of_more_than_a_hundred_classes_neither_confusion_nor_curves_are_drawn(
    tmp_path, monkeypatch, num_classes, is_there
):
    called = []
    for name in (
        "draw_confusion",
        "draw_classes",
        "draw_reliability",
        "draw_curves",
        "draw_mistakes",
        "draw_attention",
    ):
        monkeypatch.setattr(classification_pictures, name, lambda *_, name=name: called.append(name))
    model = ViTClassifier(num_classes=num_classes, embed_dim=8, depth=1, num_heads=1, image_size=4)
    model.evaluation = evaluation(num_classes, 1)
    classification_pictures.draw_classification(model, tmp_path, "test", images())
    assert ({"draw_confusion", "draw_curves"} <= {*called}) is is_there
    assert {"draw_classes", "draw_mistakes", "draw_attention"} <= {*called}


def test_a_mistake_has_the_end_of_the_name_of_its_file(drawn, tmp_path):
    one = Evaluation(2, torch.device("cpu"))
    one.update(torch.tensor([[0, 9.0]]), torch.tensor([0]), index=torch.tensor([7]))
    files = [f"a long folder/{number}/\u6c49.png" for number in range(57)]
    draw_mistakes(one, ["cat", "dog"], images(files=files), "mistakes", tmp_path / "mistakes.png")
    assert drawn[0].axes[0].texts[1].get_text() == "\u2026g folder/7/\\u6c49.png\ndog (100 %)\ntrue: cat"
