"""The picture of a model: its panels hold the numbers of the model."""

import pytest
import torch
from matplotlib.patches import ConnectionPatch, FancyArrowPatch
from torch.testing import assert_close

import vit
from vit.explain import capture_attention, overlay
from vit.explain.model_figure import draw_model


@pytest.fixture
def drawn(monkeypatch):
    """Draw a model on a random image, and return the panels of the figure and the image."""
    figures = []
    monkeypatch.setattr("vit.explain.model_figure.save_figure", lambda figure, path, **_: figures.append(figure))

    def draw(**changes):
        torch.manual_seed(0)
        sizes = {"image_size": (8, 12), "patch_size": (4, 2), "embed_dim": 12, "depth": 2, "num_heads": 3} | changes
        model = vit.VisionTransformer(num_classes=5, **sizes).eval()
        image = torch.rand(3, 8, 12)
        draw_model(model, image, image, "model.png", ["a", "b", "c", "d", "e"])
        return model, image, figures[-1].axes

    return draw


def numbers(axes):
    return torch.tensor(axes.images[0].get_array().filled())


@torch.no_grad()
def test_the_tokens_are_those_of_the_model_before_and_after_the_positions(drawn):
    model, image, panels = drawn()
    patches = model.patch_embed(image[None])
    with_class = torch.cat([model.cls_token, patches], dim=1) + model.pos_embed
    assert_close(numbers(panels[2]), patches[0])
    shown = numbers(panels[3])
    assert panels[3].images[0].get_array().mask[1:3].all()  # white, between the class token and the patches
    assert_close(torch.cat([shown[:1], shown[3:]]), with_class[0])
    assert panels[2].get_ylabel() == "12 tokens"
    assert panels[3].get_ylabel() == "13 tokens"


def test_patches_are_moved_apart_and_keep_their_pixels(drawn):
    _, image, panels = drawn()
    apart = numbers(panels[1])
    assert apart.shape == (2 * 5, 6 * 3, 3)  # a white row and column between patches of 4 x 2
    assert_close(apart[5:9, 3:5], image[:, 4:8, 2:4].permute(1, 2, 0))
    assert apart[4].eq(1).all()
    assert apart[:, 2].eq(1).all()


@torch.no_grad()
def test_the_bars_are_the_probabilities_of_the_four_best_classes_and_of_the_others(drawn):
    model, image, panels = drawn()
    best = model(image[None])[0].softmax(dim=0).topk(4)
    bars = [bar.get_width() for bar in panels[6].patches]
    assert bars[:4] == pytest.approx((100 * best.values).tolist(), rel=1e-4)
    assert sum(bars) == pytest.approx(100)
    labels = [label.get_text() for label in panels[6].get_yticklabels()]
    assert labels == [*("abcde"[k] for k in best.indices), "1 other"]


def test_the_map_is_the_attention_of_the_class_token_in_the_last_block(drawn):
    model, image, panels = drawn()
    attn = capture_attention(model, image[None])[-1][0].mean(dim=0)[0, 1:].reshape(1, 2, 6)
    assert_close(numbers(panels[4]), overlay(image[None], attn.detach())[0].permute(1, 2, 0))
    below = f"brightest patch: {100 * attn.max():.1f} %\n(equal shares: {100 / 13:.1f} %)"
    assert below in [text.get_text() for text in panels[4].texts]


@pytest.mark.parametrize("changes", [{"pool": "mean", "num_registers": 2}, {"pool": "map"}])
def test_without_a_class_token_the_map_is_the_attention_of_the_mean_patch_in_the_last_block(drawn, changes):
    model, image, panels = drawn(class_token=False, **changes)
    first = model.num_prefix_tokens
    attn = capture_attention(model, image[None])[1][0].mean(dim=0)[first:, first:].mean(dim=0).reshape(1, 2, 6)
    assert_close(numbers(panels[4]), overlay(image[None], attn.detach())[0].permute(1, 2, 0))


@pytest.mark.parametrize(
    ("changes", "tokens", "read"),
    [
        ({}, "positions added, and\nclass token on top", "the class token"),
        ({"num_registers": 2}, "positions added, and\n3 learned tokens on top", "the class token"),
        ({"class_token": False, "pool": "mean"}, "positions added", "the mean of all patches"),
        ({"pos_embed": "sincos"}, "positions added, and\nclass token on top", "the class token"),
        ({"pos_embed": "none"}, "no positions added, and\nclass token on top", "the class token"),
        ({"pos_embed": "rope"}, "no positions added, and\nclass token on top", "the class token"),
    ],
)
def test_the_titles_say_which_tokens_there_are_and_which_the_linear_layer_reads(drawn, changes, tokens, read):
    _, _, panels = drawn(**changes)
    assert panels[3].get_title() == tokens
    assert panels[6].get_title() == f"a norm and a linear layer\nread {read}"
    assert panels[1].get_title() == "12 patches of\n4 x 2 pixels"
    assert panels[5].get_title() == "2 blocks of\nthese steps"


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, ["norm", "attention", "+", "norm", "MLP", "+"]),
        ({"norm": "post"}, ["attention", "+", "norm", "MLP", "+", "norm"]),
        ({"norm": "none"}, ["attention", "+", "MLP", "+"]),
        ({"residual": False}, ["norm", "attention", "norm", "MLP"]),
        ({"norm": "none", "residual": False}, ["attention", "MLP"]),
    ],
)
def test_a_block_has_the_steps_of_the_model(drawn, changes, steps):
    _, _, panels = drawn(**changes)
    texts = sorted((-text.get_position()[1], text.get_text()) for text in panels[5].texts if text.get_text())
    assert [step for _, step in texts] == ["tokens in", *steps, "tokens out"]
    written = texts[1:-1]
    skips = [-line.get_ydata()[0] for line in panels[5].lines]
    assert len(skips) == steps.count("+")
    # From the top down, each skip connection starts before the attention or MLP that it goes around.
    order = sorted([*written, *((height, "skip") for height in skips)])
    names = [name for _, name in order if name not in ("norm",)]
    assert names == [name for of in ("attention", "MLP") for name in (["skip", of, "+"] if skips else [of])]


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_arrows_lead_from_panel_to_panel_and_a_line_ties_the_picture_to_the_attention(drawn, norm):
    _, _, panels = drawn(norm=norm)
    figure = panels[0].get_figure(root=True)
    ties = [artist for artist in figure.artists if isinstance(artist, ConnectionPatch)]
    arrows = [artist for artist in figure.artists if isinstance(artist, FancyArrowPatch) and artist not in ties]
    assert (len(arrows), len(ties)) == (len(panels) - 2, 1)
    (height,) = (text.get_position()[1] for text in panels[5].texts if text.get_text() == "attention")
    assert ties[0].xy1[1] == ties[0].xy2[1] == pytest.approx(height)
    assert panels[4].get_position().x1 < panels[5].get_position().x0  # in front of the blocks, not behind them


def test_models_without_side_by_side_patches_or_without_classes_are_refused():
    image = torch.rand(3, 8, 8)
    overlapping = vit.VisionTransformer(8, 4, embed_dim=12, depth=1, num_heads=3, patch_stride=2).eval()
    with pytest.raises(ValueError, match=r"patches of \(4, 4\) every \(2, 2\) pixels overlap"):
        draw_model(overlapping, image, image, "model.png")
    headless = vit.VisionTransformer(8, 4, embed_dim=12, depth=1, num_heads=3, num_classes=0).eval()
    with pytest.raises(ValueError, match="the model has no head"):
        draw_model(headless, image, image, "model.png")
