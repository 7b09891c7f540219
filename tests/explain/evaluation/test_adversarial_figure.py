"""The figure of adversarial attention: its pictures and numbers."""

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from vit.explain.evaluation.adversarial import adversarial_attention
from vit.explain.evaluation.adversarial_figure import draw_adversarial
from vit.explain.heatmap import displayable


@pytest.mark.parametrize(("layers", "title"), [([1], "attention\nof layer 1"), (None, "rollout\nof layers 0 to 1")])
def test_each_image_stands_beside_its_attention_before_and_after(model, images, tmp_path, monkeypatch, layers, title):
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure) or save(figure, *args))
    result = adversarial_attention(model, images[:3], layers, steps=30)
    names = [f"class {k}" for k in range(model.num_classes)]
    draw_adversarial(displayable(images[:3]), result, tmp_path / "pairs.png", names)
    (axes,) = drawn[0].axes
    assert len(axes.images) == 3 * 3 + 1  # and the colour bar
    texts = [text.get_text() for text in axes.texts]
    assert title in texts
    (column,) = (text.get_position()[0] for text in axes.texts if text.get_text().startswith("adversarial"))
    below = [text for text in axes.texts if "nats apart" in text.get_text()]
    assert {text.get_position()[0] for text in below} == {column}  # the distance of the adversarial attention
    with torch.no_grad():
        before = model(images[:3]).softmax(dim=-1)
    predicted = before.argmax(dim=-1).tolist()
    moved = [result.probabilities_after[row, k] for row, k in enumerate(predicted)]
    assert [text.get_text() for text in below] == [
        f"class {k}: {100 * probability:.1f} %\n{divergence:.2f} nats apart"
        for k, probability, divergence in zip(predicted, moved, result.divergence, strict=True)
    ]
    assert {f"class {k}: {100 * before[row, k]:.1f} %" for row, k in enumerate(predicted)} < set(texts)
    with Image.open(tmp_path / "pairs.png") as picture:
        assert min(picture.size) > 200


def test_other_images_than_those_of_the_result_are_refused(model, images, tmp_path):
    result = adversarial_attention(model, images[:3], steps=1)
    with pytest.raises(ValueError, match="2 images do not fit a result of 3"):
        draw_adversarial(torch.zeros(2, 3, 6, 10), result, tmp_path / "pairs.png")
