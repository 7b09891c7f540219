"""Maps over photographs as taken: what is drawn where, and what is said of it."""

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.explain import METHODS, photograph_sheet, picture
from vit.explain.explained import ENLARGED, SMALL_PART, choose_methods, explain_photograph, fitting_maps, maps_of
from vit.explain.inputs import as_images
from vit.explain.maps.subject import Subject
from vit.explain.photograph import locate, read_shown
from vit.explain.photograph_overlay import overlay_photograph
from vit.explain.photograph_sheet import draw_map, draw_sheet

NAMES = ["cat", "dog", "eel"]


def build(**kwargs):
    torch.manual_seed(0)
    arguments = {"image_size": 8, "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 3}
    model = vit.VisionTransformer(**arguments | kwargs).eval()
    model.pretrained_cfg = {"mean": [0.5] * 3, "std": [0.25] * 3, "class_names": NAMES}
    return model


@pytest.fixture
def model():
    return build()


def photograph(width, height):
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def explained(model, image, methods=("relevance",), target=None, versus=None, of_class=False, name="m", **chosen):
    subject = Subject(model, as_images(model, image), target, versus)
    maps = maps_of(subject, choose_methods(methods, **chosen))
    return explain_photograph(locate(image, model), subject, maps, name, of_class=of_class)


def test_the_map_lies_on_exactly_the_pixels_that_the_model_saw_of_the_photograph_as_taken(model, tmp_path):
    image = photograph(613, 401)
    found = explained(model, image)
    (choice,) = found.maps
    drawn = draw_map([found], choice)
    with Image.open(drawn.save(tmp_path / "map.png")) as opened:
        shown = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1).float()
    left, top, right, bottom = drawn.boxes[0]
    assert (right - left, bottom - top) == (613, 401)
    grey = read_shown(locate(image, model))
    expected = 255 * overlay_photograph(grey, found.maps[choice].clamp(min=0), (106.0, 0.0, 507.0, 401.0), found.cells)
    assert (shown[:, top:bottom, left:right] - expected).abs().max() <= 1


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [
        (640, 427, "The model saw the middle 427 x 427 of 640 x 427 pixels, scaled to 8 x 8; the rest is dimmed."),
        (300, 300, "The model saw all 300 x 300 pixels, scaled to 8 x 8."),
        (
            1000,
            100,
            "the middle 100 x 100 of 1,000 x 100 pixels, scaled to 8 x 8; the rest is dimmed, and this",
        ),
    ],
)
def test_what_the_model_saw_is_said(model, width, height, words):
    found = explained(model, photograph(width, height))
    (choice,) = found.maps
    panel = found.panel(choice, read_shown(found.photograph))
    assert words in panel.caption.replace("\u00a0", " ")
    assert "The largest patch has" in panel.caption


def test_title_class_method_file_and_model_are_written(model):
    found = explained(model, photograph(60, 40))
    panel = found.panel(*found.maps, read_shown(found.photograph))
    assert panel.title.split(" (")[0] in NAMES
    assert panel.subtitle == "relevance, PIL image, model m"
    assert panel.bar.unit == "share of the largest value"


def test_a_question_has_the_probabilities_of_its_classes_and_maps_of_no_class_do_not_answer_it(model):
    image = photograph(60, 40)
    found = explained(model, image, ("relevance", "rollout"), "dog", "eel", of_class=True)
    shares = [f"{100 * share:.1f} %" for share in model(as_images(model, image)).softmax(dim=-1)[0].tolist()]
    shown = read_shown(found.photograph)
    relevance, rollout = (found.panel(choice, shown) for choice in found.maps)
    assert relevance.title == f"why dog ({shares[1]}), and not eel ({shares[2]})?"
    assert relevance.subtitle == f"predicted: {found.prediction}\nrelevance, PIL image, model m"
    assert rollout.title == found.prediction
    assert rollout.subtitle.startswith("rollout (the same for every class)")


def test_of_several_labels_the_explained_one_is_named_beside_those_that_are_predicted(model):
    image = photograph(60, 40)
    probabilities = model(as_images(model, image)).sigmoid()[0]
    first, second, _ = probabilities.argsort(descending=True).tolist()
    model.pretrained_cfg["thresholds"] = [1.0 if number == first else 0.0 for number in range(3)]
    found = explained(model, image)
    panel = found.panel(*found.maps, read_shown(found.photograph))
    assert panel.title == f"why {NAMES[first]} ({100 * probabilities[first]:.1f} %)?"
    assert f"predicted: {found.prediction}" in panel.subtitle
    assert NAMES[first] not in found.prediction
    assert NAMES[second] in found.prediction


def test_a_sheet_says_of_each_photograph_which_class_its_maps_explain(model, monkeypatch):
    image, drawn = photograph(60, 40), []
    monkeypatch.setattr(photograph_sheet, "draw_panels", lambda rows, *_, **__: drawn.extend(rows))
    picture(model, [image, image], target=["cat", "eel"])
    said = [panel.subtitle for row in drawn for panel in row if panel.title == "PIL image"]
    assert [text.partition("; ")[2].partition(" (")[0] for text in said] == ["why cat", "why eel"]


@pytest.mark.parametrize(("width", "height"), [(1000, 100), (100, 1000)])
def test_a_small_part_of_a_panorama_is_drawn_again_enlarged(model, width, height):
    found = explained(model, photograph(width, height))
    drawn = found.drawn(*found.maps, read_shown(found.photograph, size=1000))
    side, across = round(ENLARGED * 1000), 30
    assert sorted(drawn.shape[1:]) == [100 + across + side, 1000]
    part = drawn[:, -side:, :side] if width > height else drawn[:, :side, -side:]
    colours = part - part.mean(dim=0)
    assert colours.abs().amax() > 0.1  # the map is on it
    rest = drawn[:, 130:, side + 1 :] if width > height else drawn[:, side + 1 :, 130:]
    assert (rest == 1).all()


def test_a_part_that_is_large_enough_is_drawn_once(model):
    found = explained(model, photograph(100, round(100 * SMALL_PART) + 1))
    assert not found.has_small_part


@pytest.mark.parametrize(
    ("kwargs", "unit"),
    [
        ({}, " of the class token"),
        ({"class_token": False, "pool": "mean"}, ", mean over the tokens that the logits read"),
    ],
)
def test_a_layer_and_a_head_of_attention_are_shown_in_shares(kwargs, unit):
    model, image = build(**kwargs), photograph(60, 60)
    found = explained(model, image, ("attention",), layer=1, head=2)
    ((choice, values),) = found.maps.items()
    assert (choice.title, choice.file_name) == ("attention, layer 1, head 2", "attention_layer1_head2")
    attn = vit.explain.capture_attention(model, as_images(model, image))[1][0, 2]
    row = attn[0, 1:] if not kwargs else attn.mean(dim=0)
    torch.testing.assert_close(values.flatten(), row.detach())
    bar = found.panel(choice, read_shown(found.photograph)).bar
    assert bar == (f"share of attention{unit}", ("0 %", f"{50 * values.max():.2g} %", f"{100 * values.max():.2g} %"))


@pytest.mark.parametrize(
    ("methods", "chosen", "words"),
    [
        (["rollout"], {"head": 1}, r"rollout has no head to choose \(head 1\): choose the method attention"),
        (["attention", "relevance"], {"layer": 0}, "relevance has no layer to choose"),
        ([], {}, "there are no methods: name at least one"),
        (["attention"], {"layer": -1}, r"layer \(-1\) must be a whole number of at least 0: the first layer is 0"),
        (["attention"], {"head": 1.5}, r"head \(1.5\) must be a whole number"),
    ],
)
def test_a_layer_or_head_of_other_methods_is_refused(methods, chosen, words):
    with pytest.raises(ValueError, match=words):
        choose_methods(methods, **chosen)


def test_layers_and_heads_that_the_model_lacks_are_refused_with_their_range(model):
    with pytest.raises(ValueError, match=r"layer \(2\) must be one of 2 layers, from .* to 1"):
        explained(model, photograph(60, 60), ("attention",), layer=2)
    with pytest.raises(ValueError, match=r"head \(3\) must be one of 3 heads, from 0 to 2"):
        explained(model, photograph(60, 60), ("attention",), layer=0, head=3)


def test_in_python_one_map_of_one_photograph_is_a_picture_and_several_are_a_sheet(model):
    image = photograph(60, 40)
    one = picture(model, image, target="dog", size=300)
    assert one.boxes[0][2] - one.boxes[0][0] == 300
    assert "relevance of PIL image" in one.description
    assert len(picture(model, [image, image], ["rollout", "relevance"], target=["dog", "cat"]).boxes) == 2 * 3
    with pytest.raises(ValueError, match="target has 1 classes for 2 images"):
        picture(model, [image, image], target=["dog"])


def test_two_models_are_drawn_side_by_side(model):
    image = photograph(60, 40)
    found = [explained(model, image, name="one"), explained(build(patch_size=4), image, name="two")]
    assert len(draw_map(found, next(iter(found[0].maps))).boxes) == 2
    assert len(draw_sheet([found]).boxes) == 3


def test_all_methods_stand_on_one_sheet_and_those_that_do_not_fit_are_named():
    model, image = build(attention=["linear", "softmax"]), photograph(60, 40)
    subject = Subject(model, as_images(model, image), grid=(4, 4))
    maps, reasons = fitting_maps(subject, choose_methods([*METHODS]))
    assert {each.method for each in maps} | {each.method for each in reasons} == {*METHODS}
    assert "never forms the matrix" in next(why for each, why in reasons.items() if each.method == "rollout")
    found = explain_photograph(locate(image, model), subject, maps, "m", of_class=False)
    assert len(draw_sheet([[found]]).boxes) == 1 + len(found.maps)


@pytest.mark.parametrize("method", ["occlusion", "token_drop"])
def test_the_bar_of_a_comparison_is_of_the_difference_of_two_logits(method, model):
    image = photograph(40, 40)
    for versus, score in ((None, "logit"), (0, "difference of the two logits")):
        found = explained(model, image, [method], target=1, versus=versus)
        (choice,) = found.maps
        bar = found.panel(choice, read_shown(locate(image, model))).bar
        assert bar.unit == f"fall of the {score} without the patch"
