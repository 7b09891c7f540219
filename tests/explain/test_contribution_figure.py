"""The figure of contributions: what stands in it, and that it is written."""

import matplotlib.figure
import pytest
import torch
from PIL import Image

import vit
from tests.architectures import IMAGES, TARGET, randomised
from vit.capture import examine
from vit.explain import contributions, displayable, logit_lens, overlay
from vit.explain.contribution_figure import draw_contributions


@pytest.fixture
def texts(monkeypatch):
    """All texts of the figures that are saved."""
    texts = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        texts.extend(text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text())

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return texts


def test_the_figure_shows_the_numbers_of_the_terms(random_vit, tmp_path, texts):
    model = random_vit()
    found, names = contributions(model, IMAGES, TARGET), ["cat", "dog$", *"abcde"]
    draw_contributions(
        displayable(IMAGES)[1],
        found,
        logit_lens(model, IMAGES),
        tmp_path / "terms.png",
        index=1,
        class_names=names,
        title="why dog$?",
    )
    with Image.open(tmp_path / "terms.png") as picture:
        assert min(picture.size) > 600
    name, value = found.terms(1)[0]
    assert name in texts
    assert f"{value:.2f}" in texts
    assert f"The largest terms; all terms add up to {found.logits[1]:.2f}" in texts
    assert f"{found.heads[1, 2, 0].sum():.2f}" in texts
    assert f"Patches for the class: {found.patches[1].clamp(min=0).sum():+.2f}" in texts
    assert f"Patches against the class: {found.patches[1].clamp(max=0).sum():+.2f}" in texts
    assert "why dog$?" in texts
    assert {"cat", "dog$"} & set(texts)


def test_patches_without_evidence_against_the_class_leave_that_picture_grey(random_vit, tmp_path, texts):
    model = random_vit(depth=1)
    found = contributions(model, IMAGES, TARGET)
    found.heads.abs_()
    draw_contributions(torch.rand(1, 6, 10), found, logit_lens(model, IMAGES), tmp_path / "terms.png")
    assert "Patches against the class: -0.00" in texts or "Patches against the class: +0.00" in texts


def test_patches_lie_where_the_model_has_them(tmp_path, monkeypatch):
    # Of 12 pixels, patches of 5 have 5, 5 and 2, and not 4 each.
    model = randomised(vit.VisionTransformer(12, 5, embed_dim=12, depth=1, num_heads=3, pad_images=True)).eval()
    image, drawn = torch.rand(1, 3, 12, 12, dtype=torch.float64), []
    monkeypatch.setattr("vit.explain.contribution_figure.save_figure", lambda figure, path: drawn.append(figure))
    found = contributions(model, image)
    draw_contributions(image[0], found, logit_lens(model, image), tmp_path / "terms.png")
    for_class, against = (axes.images[0].get_array() for axes in drawn[0].axes if "the class" in axes.get_title())
    both = torch.cat([found.patches, -found.patches]).clamp(min=0)
    expected = overlay(image.expand(2, -1, -1, -1), both, cells=examine(model, image).cells, scale="common")
    for picture, of in zip((for_class, against), expected, strict=True):
        torch.testing.assert_close(torch.tensor(picture.data), of.permute(1, 2, 0))
