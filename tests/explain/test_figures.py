"""The figures of maps: their panels, texts, colours and numbers."""

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import vit
from vit.capture.anatomy import examine
from vit.explain import CONTROLS, capture_attention, score
from vit.explain.evaluation.faithfulness import Curves
from vit.explain.evaluation.printed_table import Interval
from vit.explain.figures import draw_curves, draw_heads, draw_maps, draw_scores
from vit.explain.image_grid import CELL
from vit.support.plotting import GREY, ORANGE


@pytest.fixture
def drawn(monkeypatch):
    """The figures saved."""
    figures = []
    save = Figure.savefig

    def keep(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def texts(figure):
    return {text.get_text(): text.get_color() for axes in figure.axes for text in axes.texts if text.get_text()}


@pytest.mark.parametrize(("channels", "across", "smooth"), [(1, 1, False), (3, 2, True)])
def test_a_sheet_has_every_image_with_each_of_its_maps(drawn, tmp_path, channels, across, smooth):
    images, maps = torch.rand(3, channels, 6, 8), {"rollout": torch.rand(3, 3, 2), "relevance": torch.rand(3, 3, 2)}
    draw_maps(images, maps, tmp_path / "sheet.png", across=across, smooth=smooth)
    assert len(drawn[0].axes[0].images) == 3 * (1 + len(maps)) + 1  # and the colour bar
    end = "\nsmoothed" if smooth else ""
    assert texts(drawn[0]).keys() == {"rollout\n(any class)" + end, "relevance" + end} | {
        *("0", "0.5", "1", "share of the largest value"),
        *(
            f"largest: {values.max() / values.mean():.2g} times the mean"
            for drawn_maps in maps.values()
            for values in drawn_maps
        ),
    }
    with Image.open(tmp_path / "sheet.png") as picture:
        assert min(picture.size) > 200


def test_lines_of_a_sheet_stand_between_the_cells_that_the_model_sees(drawn, tmp_path):
    cells = torch.tensor([[-1, 0, 0, 1], [-1, 0, 0, 1], [-1, 2, 2, 3], [-1, -1, -1, -1]])
    draw_maps(torch.rand(1, 3, 4, 4), {"rollout": torch.rand(1, 2, 2)}, tmp_path / "sheet.png", cells=cells)
    across, down = ([line[0] for line in lines.get_segments()] for lines in drawn[0].axes[0].collections[-2:])
    (left, first), (_, second) = across
    top = down[0][1]
    assert [first - top, second - top] == pytest.approx([CELL / 2, CELL * 3 / 4])
    assert [place - left for place, _ in down] == pytest.approx([0, CELL / 2])  # none where the model sees nothing


def test_a_sheet_names_its_images_with_and_without_predictions(drawn, tmp_path):
    images, maps = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), {"uniform": torch.ones(2, 2, 2)}
    names = ["cat.jpg", "dog.jpg"]
    draw_maps(images, maps, tmp_path / "sheet.png", names=names)
    assert {"cat.jpg", "dog.jpg"} <= texts(drawn[0]).keys()
    draw_maps(images, maps, tmp_path / "sheet.png", names=names, logits=torch.tensor([[9.0, 0.0], [0.0, 9.0]]))
    assert {"cat.jpg\n0 (100 %)", "dog.jpg\n1 (100 %)"} <= texts(drawn[1]).keys()


def test_a_sheet_names_the_predicted_class_and_marks_wrong_ones(drawn, tmp_path):
    logits, names = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), ["cat", "American Staffordshire terrier"]
    draw_maps(
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        {"uniform": torch.ones(2, 2, 2)},
        tmp_path / "sheet.png",
        logits=logits,
        class_names=names,
        labels=torch.tensor([0, 0]),
        title="two images",
    )
    found = texts(drawn[0])
    assert found["cat (100 %)\ntrue: cat"] == "black"
    assert found["American Staffordshire\nterrier (100 %)\ntrue: cat"] == ORANGE
    assert "two images" in found


def test_classes_without_names_have_numbers(drawn, tmp_path):
    draw_maps(torch.zeros(1, 3, 4, 4), {}, tmp_path / "sheet.png", logits=torch.tensor([[0.0, 0.0, 9.0]]))
    assert "2 (100 %)" in texts(drawn[0])


@pytest.mark.parametrize("attention", ["softmax", "differential"])
def test_heads_of_an_image_are_drawn_layer_by_layer(drawn, tmp_path, attention):
    model = vit.VisionTransformer(
        image_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, attention=attention
    ).eval()
    images = torch.randn(1, 3, 8, 8)
    attentions = capture_attention(model, images)
    draw_heads(torch.rand(3, 8, 8), attentions, examine(model, images), tmp_path / "heads.png")
    heads = sum(attn.shape[1] for attn in attentions)
    assert len(drawn[0].axes[0].images) == heads + 1
    assert texts(drawn[0]).keys() >= {"layer 0", "layer 1", "head 0", "head 1"}


@pytest.mark.parametrize("count", [1, 5])
def test_curves_are_means_over_images_a_panel_for_each_method_with_its_removal_area(drawn, tmp_path, count):
    names = [f"method {number}" for number in range(count)]
    curves = {name: Curves(*torch.rand(4, 5, 10)) for name in names}
    draw_curves(curves, tmp_path / "curves.png")
    panels = [axes for axes in drawn[0].axes if axes.lines]
    for axes, name in zip(panels, names, strict=True):
        least, most = axes.lines
        assert most.get_ydata() == pytest.approx(curves[name].most_first.mean(dim=0).numpy())
        assert least.get_ydata() == pytest.approx(curves[name].least_first.mean(dim=0).numpy())
        area = (curves[name].least_first - curves[name].most_first).mean()
        assert axes.get_title() == f"{name}: {area:z.2f}"
    (legend,) = drawn[0].legends
    colours = {text.get_text(): line.get_color() for text, line in zip(legend.texts, legend.get_lines(), strict=False)}
    assert colours["most relevant removed first"] == panels[0].lines[1].get_color()
    assert colours["least relevant removed first"] == panels[0].lines[0].get_color()


def test_scores_are_dots_with_their_intervals_the_highest_on_top(drawn, tmp_path):
    model = vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=3).eval()
    scores = score(model, [torch.randn(6, 3, 8, 8)], ["rollout"])
    draw_scores(scores, "drop", tmp_path / "scores.png")
    (axes,) = drawn[0].axes
    methods = [label.get_text() for label in axes.get_yticklabels()]
    means = [scores.row(method=method)["drop"].mean for method in methods]
    assert means == sorted(means)
    assert sorted(methods) == sorted(["rollout", *CONTROLS])
    for place, method in enumerate(methods):
        interval: Interval = scores.row(method=method)["drop"]
        bar, dot = axes.lines[2 * place : 2 * place + 2]
        assert list(bar.get_xdata()) == [interval.low, interval.high]
        assert list(dot.get_xdata()) == [interval.mean]
        assert (dot.get_color() == GREY) == (method in CONTROLS)
    assert axes.get_xlabel() == "removal area (tokens)"
    assert axes.get_title(loc="left").endswith("; dashed: the best control")
    with pytest.raises(ValueError, match=r"'dorp': choose one of drop, "):
        draw_scores(scores, "dorp", tmp_path / "scores.png")
