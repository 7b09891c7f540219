"""The explorer: the data in its page, and what a browser shows."""

import base64
import copy
import json
import re
import zlib
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from torch.testing import assert_close

from tests.browser import opened as opened_file
from tests.capture.wrapped_model import Around
from vit import VisionTransformer
from vit.analysis import prune_heads
from vit.attention import MultiHeadAttention
from vit.capture.anatomy import examine
from vit.capture.attention import capture_attention
from vit.explain import explorer_page as page_module
from vit.explain.decomposition import contributions
from vit.explain.default_method import NOT_MEASURED
from vit.explain.explorer_page import (
    FINE,
    TOP,
    ablated_logits,
    displayed_pixels,
    explorer,
    name_other_tokens,
    quantise,
)
from vit.explain.heatmap import overlay, shade
from vit.explain.maps import Subject, signed_map
from vit.glossary import MAPS

SMALL = {"image_size": (12, 16), "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 4, "num_classes": 7}
NAMES = [f"kind {letter}" for letter in "ABCDEFG"]
MINUS = "\u2212"  # what the page writes before negative numbers
LAST = 2  # the layer shown first


def contrasted(**kwargs):
    """A model whose attention is far from uniform, and whose logits depend on its heads."""
    torch.manual_seed(0)
    model = VisionTransformer(**SMALL | kwargs).eval()
    with torch.no_grad():
        model.head.weight.mul_(30)
        for block in model.blocks:
            block.attn.qkv.weight.mul_(2)
    return model


def image_for(model):
    channels = model.patch_embed.proj.in_channels
    return torch.randn(channels, *model.patch_embed.image_size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def captured(model, image):
    """Attention (layers, heads, N, N) and logits (classes,)."""
    attentions = capture_attention(model, image[None])
    return torch.cat(list(attentions)), attentions.logits[0]


@torch.no_grad()
def without(model, image, layer, heads):
    """Logits of a copy whose output projection ignores these heads."""
    model = deepcopy(model)
    proj = model.blocks[layer].attn.proj
    width = proj.in_features // SMALL["num_heads"]
    for head in heads:
        proj.weight[:, head * width : (head + 1) * width] = 0
    return model(image[None])[0]


def data_of(page):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def unpack(text, dtype):
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=dtype)


def unpack_attention(data):
    """The attention to patches in a page, (layers, heads, N, patches), and to other tokens, (layers, heads, N, n)."""
    shape = (len(data["heads"]), data["heads"][0], data["tokens"], -1)
    codes = unpack(data["codes"], torch.uint8).view(shape)
    lows, largest = (unpack(data[name], torch.float32).view(shape).double() for name in ("lows", "largest"))
    return decode(lows, largest, codes), unpack(data["otherWeights"], torch.float32).view(shape)


def decode(lows, largest, codes):
    return largest / FINE * (lows + codes / 255 * (TOP - lows)).sinh()


def allowed(truth, share=0.015):
    """The largest error that the page and the docstring name, for weights of patches (..., N, patches)."""
    return share * truth.abs() + truth.abs().amax(-1, keepdim=True) / 50_000


@pytest.fixture(scope="module")
def model():
    return contrasted(num_registers=2)


@pytest.fixture(scope="module")
def image(model):
    return image_for(model)


@pytest.fixture(scope="module")
def page_text(model, image):
    return explorer(model, image, class_names=NAMES)


@pytest.mark.parametrize(("attention", "share"), [("softmax", 0.015), ("differential", 0.03)])
def test_attention_in_the_page_is_as_close_to_that_of_the_model_as_it_says(attention, share):
    model = contrasted() if attention == "softmax" else VisionTransformer(**SMALL, attention=attention).eval()
    image = image_for(model)
    truth, _ = captured(model, image)
    to_patches, to_class_token = unpack_attention(data_of(explorer(model, image)))
    assert_close(to_class_token, truth[..., :1], rtol=0, atol=0)
    assert ((to_patches - truth[..., 1:]).abs() <= allowed(truth[..., 1:], share)).all()
    assert attention == "softmax" or truth.min() < 0


def test_patches_beside_a_class_token_that_takes_nearly_all_keep_their_differences(model, image):
    def hungry(layer, attn):
        rest = attn.scatter(-1, torch.zeros_like(attn[..., :1]).long(), 0.0)
        return torch.cat(
            [0.9995 * torch.ones_like(attn[..., :1]), 0.0005 * (rest / rest.sum(-1, keepdim=True))[..., 1:]], -1
        )

    attn = hungry(0, captured(model, image)[0])
    patches = attn[..., 3:]
    found = decode(*(part if part.ndim == patches.ndim else part[..., None] for part in quantise(patches)))
    assert found.min() > 0
    assert ((found - patches).abs() <= allowed(patches)).all()


def test_quantising_keeps_zeros_flat_rows_and_the_largest_of_a_row():
    attn = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.25, 1.0], [0.2, 0.2, 0.2], [0.2, 0.20001, 0.2], [-0.5, 0.0, 0.5]])
    lows, largest, codes = quantise(attn)
    assert codes.dtype == torch.uint8
    found = decode(lows[:, None].double(), largest[:, None].double(), codes).float()
    assert_close(found[0], attn[0], rtol=0, atol=0)
    assert found[1, 0] == 0
    assert_close(found[[1, 4]][:, [0, -1]], attn[[1, 4]][:, [0, -1]])
    assert_close(found[2:4], attn[2:4], rtol=1e-6, atol=0)


def test_ablated_logits_are_those_of_a_projection_that_ignores_the_head(model, image):
    with torch.no_grad():
        found = ablated_logits(model, image[None], [4, 4, 4])
    for layer, logits in enumerate(found):
        for head in range(4):
            assert_close(logits[head], without(model, image, layer, [head]), rtol=1e-4, atol=1e-5)
        assert_close(logits[4], without(model, image, layer, range(4)), rtol=1e-4, atol=1e-5)
    _, intact = captured(model, image)
    assert all((logits - intact).abs().max(dim=1).values.min() > 1e-3 for logits in found)


class Discarding(torch.nn.Module):
    """A block, and an attention before it whose result is thrown away."""

    def __init__(self, block):
        super().__init__()
        self.block, self.unread = block, MultiHeadAttention(24, 4)

    def forward(self, tokens, *args, **kwargs):
        self.unread(tokens)
        return self.block(tokens, *args, **kwargs)


def test_attention_that_the_logits_do_not_depend_on_is_not_switched_off_in_place_of_another(model, image, page_text):
    discarding = deepcopy(model)
    discarding.blocks[1] = Discarding(discarding.blocks[1])
    found, expected = data_of(explorer(discarding, image, class_names=NAMES)), data_of(page_text)
    assert found["heads"] == expected["heads"]
    assert_close(unpack(found["logits"], torch.float32), unpack(expected["logits"], torch.float32))


def test_logits_and_probabilities_in_the_page_are_exact(page_text, model, image):
    data = data_of(page_text)
    kept = [NAMES.index(name) for name in data["classes"]]
    logits = unpack(data["logits"], torch.float32).view(-1, len(kept))
    log_sums = unpack(data["logSums"], torch.float32)
    assert len(logits) == len(log_sums) == 1 + 3 * (4 + 1)
    _, intact = captured(model, image)
    assert_close(logits[0], intact[kept])
    assert_close((logits[0] - log_sums[0]).exp(), intact.softmax(0)[kept])
    assert intact.topk(5).indices.sort().values.tolist() == sorted(set(kept) & set(intact.topk(5).indices.tolist()))


@pytest.mark.parametrize(
    ("kwargs", "grid", "others"),
    [
        ({}, [3, 4], [[0, "class token"]]),
        ({"num_registers": 2}, [3, 4], [[0, "class token"], [1, "register 0"], [2, "register 1"]]),
        ({"pool": "mean", "class_token": False}, [3, 4], []),
        ({"pool": "mean", "class_token": False, "num_registers": 1}, [3, 4], [[0, "register 0"]]),
        ({"pool": "mean"}, [3, 4], [[0, "class token"]]),
        ({"in_channels": 1}, [3, 4], [[0, "class token"]]),
        ({"image_size": (8, 20)}, [2, 5], [[0, "class token"]]),
    ],
    ids=["class token", "registers", "mean", "mean, register", "mean, unread class token", "grey", "wide"],
)
def test_every_kind_of_model_has_a_page(kwargs, grid, others):
    model = contrasted(**kwargs)
    data = data_of(explorer(model, image_for(model)))
    assert data["grid"] == grid
    assert data["others"] == others
    assert data["firstPatch"] == len(others)
    assert data["tokens"] == len(others) + grid[0] * grid[1]
    assert data["size"] == [4 * grid[0], 4 * grid[1]]
    assert len(unpack(data["pixels"], torch.uint8)) == 3 * 16 * grid[0] * grid[1]


def test_a_class_token_that_the_logits_do_not_read_is_not_where_the_page_begins():
    for kwargs, home in (({}, 0), ({"pool": "mean"}, None), ({"pool": "cls+mean"}, 0)):
        model = contrasted(**kwargs)
        assert data_of(explorer(model, image_for(model)))["home"] == home


def test_the_classes_that_are_asked_about_are_among_those_of_the_page(model, image):
    order = [NAMES[index] for index in captured(model, image)[1].argsort(descending=True).tolist()]
    for asked in (
        {"target": NAMES.index(order[-1])},
        {"target": NAMES.index(order[0]), "versus": NAMES.index(order[-1])},
    ):
        data = data_of(explorer(model, image, class_names=NAMES, **asked))
        assert [data["classes"][place] for place in data["askedClasses"]] == [NAMES[index] for index in asked.values()]
        assert data["thresholds"] is None


def test_classes_may_be_asked_about_by_name(model, image):
    asked = {"target": NAMES[2], "versus": NAMES[4]}
    by_number = {name: NAMES.index(each) for name, each in asked.items()}
    found, expected = (data_of(explorer(model, image, class_names=NAMES, **each)) for each in (asked, by_number))
    assert found == expected
    assert found["asked"] == f"{NAMES[2]} rather than {NAMES[4]}"


@pytest.fixture(scope="module")
def of_labels(model):
    """The model as one of several labels, of which it says two of the image and never the last."""
    labels = copy.deepcopy(model)
    labels.pretrained_cfg = {"thresholds": [0.5] * 6 + [1.1], "class_names": NAMES, "mean": None, "std": None}
    return labels


def test_a_model_of_several_labels_is_shown_with_the_probability_of_each(browser, of_labels, image, tmp_path):
    _, logits = captured(of_labels, image)
    said = [
        i
        for i in logits.argsort(descending=True).tolist()
        if logits[i].sigmoid() >= of_labels.pretrained_cfg["thresholds"][i]
    ]
    with opened(browser, explorer(of_labels, image, class_names=NAMES), tmp_path) as page:
        verdict = page.locator("#verdict").inner_text()
        assert re.findall(r"kind \w", verdict) == [NAMES[i] for i in said]
        assert_close(shares_in(verdict).float(), logits[said].sigmoid(), rtol=ROUNDING, atol=0)
        assert re.findall(r"kind \w", page.title()) == [NAMES[i] for i in said]
        shown = logits_shown(page, 1, shares_in)
        for name, probability in shown.items():
            assert probability.item() == pytest.approx(logits[NAMES.index(name)].sigmoid().item(), rel=ROUNDING)


def test_the_distillation_token_has_its_name():
    model = VisionTransformerDistilled(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    model.eval()
    anatomy = examine(model, torch.randn(1, 3, 16, 16))
    assert name_other_tokens(model, anatomy) == [(0, "class token"), (1, "distillation token")]


@pytest.mark.parametrize(
    ("readout", "prefix", "expected"),
    [
        ([0.5, 0.5, 0.0, 0.0], 0, [(2, "register 0"), (3, "register 1")]),
        ([1.0, 0.0, 0.0, 0.0], 1, [(0, "class token"), (3, "register 0")]),
        ([0.0, 0.0, 0.0, 1.0], 0, [(2, "register 0"), (3, "class token")]),
        ([0.0, 1.0, 0.0, 0.0], 2, [(0, "register 0"), (1, "class token")]),
        ([0.5, 0.5, 0.0, 0.0], 2, [(0, "class token 0"), (1, "class token 1")]),
    ],
    ids=[
        *("after the patches", "class token of another name", "class token behind the patches"),
        *("a register before the class token", "two class tokens"),
    ],
)
def test_tokens_are_named_by_place_and_readout(model, image, readout, prefix, expected):
    anatomy = examine(model, image[None])
    anatomy = replace(anatomy, grid=(1, 2), num_prefix_tokens=prefix, num_tokens=4, fixed_readout=torch.tensor(readout))
    assert name_other_tokens(torch.nn.Linear(1, 1), anatomy) == expected


def test_pixels_undo_the_normalisation():
    pixels = torch.randint(256, (5, 7, 3), dtype=torch.uint8)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    image = (pixels.permute(2, 0, 1) / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert_close(displayed_pixels(image, mean, std), pixels)


def test_pixels_without_mean_and_std_reach_from_black_to_white():
    pixels = displayed_pixels(torch.tensor([[[-3.0, 1.0, 5.0]]]), None, None)
    assert pixels.tolist() == [[[0, 0, 0], [128, 128, 128], [255, 255, 255]]]
    assert displayed_pixels(torch.ones(3, 2, 2), None, None).unique().tolist() == [0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"image": torch.randn(2, 3, 12, 16)}, r"\(2, 3, 12, 16\).*images\[0\]"),
        ({"class_names": ["a", "b"]}, "2 class_names for 7 classes"),
        ({"mean": [0.5, 0.5, 0.5]}, "3 channels"),
        ({"mean": [0.5], "std": [0.5]}, "3 channels"),
        ({"maps": {"mine": torch.rand(1, 3, 4)}}, r"map 'mine' has shape \(1, 3, 4\).*3 rows and 4 columns"),
        ({"maps": {"mine": torch.full((3, 4), torch.nan)}}, "map 'mine' contains NaN"),
        ({"target": 7}, r"target \(7\) must be classes from 0 to 6"),
        ({"versus": -1}, r"versus \(-1\) must be classes from 0 to 6"),
        ({"target": 3, "versus": 3}, "target and versus are both 3 for image 0: give two classes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(model, image, kwargs, message):
    with pytest.raises(ValueError, match=message):
        explorer(model, **{"image": image} | kwargs)


def test_a_model_that_crops_is_refused_as_the_page_draws_even_cells(model, image):
    cropping = Around(model, lambda vit, images: vit(images[..., 1:, 2:])).eval()
    larger = torch.nn.functional.pad(image, (2, 0, 1, 0))
    with pytest.raises(ValueError, match=r"Around does not divide images of 13 x 18 pixels evenly into 3 x 4 patches"):
        explorer(cropping, larger)


def test_models_that_return_no_row_of_logits_are_refused(image):
    model = contrasted()
    model.forward = model.forward_features
    with pytest.raises(ValueError, match=r"logits of shape \(1, 13, 24\): give a classifier"):
        explorer(model, image)


def test_the_page_names_no_address(page_text):
    data = data_of(page_text)
    assert not [value for value in data.values() if isinstance(value, str) and "://" in value]
    template = page_text.replace(re.search(r'id="data">(.*?)</script>', page_text, re.DOTALL)[1], "")
    assert not re.search(r"https?:|//|\bsrc\s*=|\bhref\s*=|url\(|@import|\bfetch\(|XMLHttp", template)
    assert "default-src 'none'" in template


def test_class_names_cannot_end_the_data(model, image):
    names = ["</script><script>alert(1)</script>", "<!--<script>", "&amp;", '"', "{{data}}", "\u2028", "é"]
    page = explorer(model, image, class_names=names)
    assert page.count("</script>") == 2
    assert set(data_of(page)["classes"]) <= set(names)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "limit"), [(32, 4, 1e6), (224, 16, 8e6)], ids=["CIFAR-10", "ViT-B/16"]
)
def test_pages_are_of_moderate_size(image_size, patch_size, limit, monkeypatch):
    model = VisionTransformer(image_size, patch_size, embed_dim=12, depth=12, num_heads=12, mlp_ratio=1).eval()
    # The logits take little space, but one run of the model for each head takes long.
    monkeypatch.setattr(page_module, "ablated_logits", lambda *_: [torch.randn(12 * 13, 10)])
    assert len(explorer(model, torch.randn(3, image_size, image_size))) < limit


def test_the_explorer_is_saved_and_shown_in_notebooks(model, image, tmp_path):
    page = explorer(model, image, class_names=["é", *"abcdef"])
    assert page.save(tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert len(repr(page)) < 100
    shown = page._repr_html_()
    assert shown.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2  # the markup of the page is escaped


@contextmanager
def opened(browser, text, folder, **options):
    """A browser's page of this text, drawn."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    with opened_file(browser, path, **options) as page:
        if "srcdoc" not in text:
            page.wait_for_selector("#main:not([hidden])")
        yield page


@pytest.fixture(scope="module")
def shared_page(browser, page_text, tmp_path_factory):
    with opened(browser, page_text, tmp_path_factory.mktemp("explorer")) as page:
        page.evaluate("startState = {...state}; startCodes = arrays.codes.slice(); startLows = arrays.lows.slice()")
        yield page


@pytest.fixture
def page(shared_page):
    """The page as it opens; tests share it, as opening takes a second."""
    with settled(shared_page):
        shared_page.mouse.move(0, 0)
        shared_page.evaluate(
            "document.activeElement.blur(); arrays.codes.set(startCodes); arrays.lows.set(startLows); "
            "change(startState); drawClasses()"
        )
    return shared_page


@contextmanager
def settled(page):
    """Wait for the frame that draws the change."""
    yield
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle_of(page, row, column):
    box = page.locator("#stage").bounding_box()
    return box["x"] + box["width"] * (column + 0.5) / 4, box["y"] + box["height"] * (row + 0.5) / 3


def hover(page, row, column):
    with settled(page):
        page.mouse.move(*middle_of(page, row, column))


def click(page, row, column):
    with settled(page):
        page.mouse.click(*middle_of(page, row, column))


def press(page, *keys):
    with settled(page):
        for key in keys:
            page.keyboard.press(key)


def click_button(page, name, **options):
    with settled(page):
        page.get_by_role("button", name=name, **options).click()


def numbers_in(text):
    return torch.tensor([float(number) for number in re.findall(r"[-+]?\d+\.\d+", text.replace(MINUS, "-"))])


def shares_in(text):
    """The percentages in a text, as shares."""
    found = re.findall(r"([-+]?[\d.]+)\u00a0%", text.replace(MINUS, "-"))
    return torch.tensor([float(number) for number in found], dtype=torch.float64) / 100


ROUNDING = 0.005  # of numbers with three digits


def assert_shows(page, expected, others=ROUNDING):
    """The page lists the largest of the weights (15,) of the chosen map, and those of the three other tokens."""
    largest = expected[3:].topk(5).values.double()
    assert_close(shares_in(page.locator("#top").inner_text()), largest, rtol=0.015 + ROUNDING, atol=0)
    shown = torch.cat([shares_in(text) for text in page.locator("#others button").all_inner_texts()])
    assert_close(shown, expected[:3].double(), rtol=others, atol=0)


def logits_shown(page, column, read=numbers_in):
    """Name and number in a column of each row of classes; of a comparison, the second number."""
    rows = page.locator("#classes tbody tr")
    names = rows.locator("th").all_inner_texts()
    return {name: read(rows.nth(i).locator("td").nth(column).inner_text())[-1] for i, name in enumerate(names)}


def test_the_page_decodes_the_attention_of_the_model(page, model, image):
    truth, _ = captured(model, image)
    read = """reverse => Array.from({length: 3 * 4 * 15}, (_, i) =>
        [...weights(Math.floor(i / 60), Math.floor(i / 15) % 4, i % 15, reverse)])"""
    found = torch.tensor(page.evaluate(read, False)).view(3, 4, 15, 15)
    assert_close(found[..., :3], truth[..., :3], rtol=1e-6, atol=0)
    assert ((found - truth)[..., 3:].abs() <= allowed(truth[..., 3:])).all()
    reverse = torch.tensor(page.evaluate(read, True)).view(3, 4, 15, 15)
    assert_close(reverse.mT, found)
    mean = torch.tensor(page.evaluate("[...weights(1, MEAN, 5, false)]"))
    assert_close(mean, found[1, :, 5].mean(dim=0))
    assert "within 1.5 % of the model's, or within 1/50,000 of" in page.locator("#precision").inner_text()


def test_hovering_shows_the_attention_of_a_patch(page, model, image):
    truth, _ = captured(model, image)
    assert page.locator("#question").inner_text() == "Class token attends to"
    assert_shows(page, truth[LAST, :, 0].mean(dim=0))
    hover(page, 1, 2)
    patch = 3 + 1 * 4 + 2
    assert page.locator("#question").inner_text() == "Row 1, column 2 attends to"
    assert_shows(page, truth[LAST, :, patch].mean(dim=0))
    (under,) = shares_in(page.locator("#under").inner_text())
    assert under == pytest.approx(truth[LAST, :, patch, patch].mean().item(), rel=0.015 + ROUNDING)
    (outside,) = shares_in(page.locator("#masses").inner_text())
    assert outside == pytest.approx(truth[LAST, :, patch, :3].mean(dim=0).sum().item(), rel=ROUNDING)
    with settled(page):
        page.mouse.move(0, 0)
    assert page.locator("#question").inner_text() == "Class token attends to"


def test_zeros_are_never_listed_and_small_numbers_keep_their_digits(page):
    with settled(page):
        page.evaluate("""() => { arrays.codes.fill(0);
            arrays.codes[(firstMap[2] * 15) * 12 + 7] = 1; arrays.lows.fill(0); change({head: 0}) }""")
    assert page.locator("#top li").count() == 1
    assert page.locator("#top").inner_text().startswith("row 1, column 3")
    assert [page.evaluate(f"percent({share})") for share in (0.000962, 9.6e-8, 1e-10, 0, 0.922, -0.05, 1)] == [
        "0.0962\u00a0%",
        "0.00000960\u00a0%",
        "< 0.000001\u00a0%",
        "0\u00a0%",
        "92.2\u00a0%",
        f"{MINUS}5.00\u00a0%",
        "100\u00a0%",
    ]


def pixels_of(page, canvas, height, width):
    """The pixels of a canvas, (H, W, 4)."""
    read = """canvas => { const copy = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0); return [...copy.getImageData(0, 0, canvas.width, canvas.height).data] }"""
    return torch.tensor(canvas.evaluate(read)).view(height, width, 4)


def test_colours_are_those_of_overlay(page):
    grid = torch.cartesian_prod(torch.linspace(0, 1, 7), torch.linspace(0, 1, 11))
    found = torch.tensor(page.evaluate("pairs => pairs.map(([grey, share]) => shade(grey, share))", grid.tolist()))
    expected = shade(grid[:, 0].view(1, 1, 1, -1), grid[:, 1].view(1, 1, -1))[0, :, 0].T
    assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_pixel_of_the_picture_is_that_of_overlay(page, model, image):
    truth, _ = captured(model, image)
    shown = pixels_of(page, page.locator("#overlay"), 12, 16)
    photograph = displayed_pixels(image, None, None).permute(2, 0, 1)[None]
    expected = 255 * overlay(photograph, truth[LAST, :, 0, 3:].mean(dim=0).view(1, 3, 4))[0].permute(1, 2, 0)
    # A share is a byte, and within the precision of the weights.
    assert (shown[..., :3] - expected).abs().max() <= 4
    assert (shown[..., :3] - expected).abs().mean() < 1


def test_maps_are_painted_by_their_own_maximum_or_by_one_for_all(page, model, image):
    truth, _ = captured(model, image)
    yellow = (255 * shade(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1))[0, :, 0, 0]).round().int().tolist()

    def patches(cell):
        return pixels_of(page, page.locator("#matrix .map canvas").nth(cell), 3, 4).view(12, 4)

    assert patches(1)[truth[0, 0, 0, 3:].argmax(), :3].tolist() == yellow
    with settled(page):
        page.click("#shared")
    maps = truth[:, :, 0, 3:]
    layer, head, patch = (int(i) for i in torch.unravel_index(maps.argmax(), maps.shape))
    assert patches(layer * 5 + 1 + head)[patch, :3].tolist() == yellow
    others = [cell for cell in range(15) if cell != layer * 5 + 1 + head]
    assert all(yellow not in patches(cell)[:, :3].tolist() for cell in others)
    low, _, high = shares_in(page.locator("#scale").inner_text())[:3].tolist()
    assert (low, high) == (0, pytest.approx(maps.max().item(), rel=ROUNDING))


def test_the_bar_says_what_it_measures_and_what_equal_attention_would_be(page):
    assert "share of attention; equal would be 6.67\u00a0%" in page.locator("#scale").inner_text()  # 1 / 15 tokens


def test_maps_of_the_model_are_shown_in_place_of_attention(page, model, image):
    name = page.locator("#kinds button").nth(1).inner_text()
    assert re.fullmatch(r"relevance: why kind [A-G]\?", name)
    truth = signed_map("relevance", Subject(model, image[None]))[0]
    click_button(page, name)
    row, column = divmod(truth.argmax().item(), 4)
    assert page.locator("#top li").first.inner_text().split("\n") == [f"row {row}, column {column}", "1.00"]
    times = f"{truth.max() / truth.clamp(min=0).mean():#.2g} times the mean"
    assert times in page.locator("#scale").inner_text()
    expected = overlay(displayed_pixels(image, None, None).permute(2, 0, 1)[None], truth[None].clamp(min=0))[0]
    assert (
        pixels_of(page, page.locator("#overlay"), 12, 16)[..., :3] - 255 * expected.permute(1, 2, 0)
    ).abs().max() <= 4
    press(page, "m")
    assert page.locator("#question").inner_text() == "Class token attends to"


def amounts_in(text):
    """The numbers with a sign in a text, such as what is added to a logit."""
    found = re.findall(r"[+-]\d[\d.e-]*\d|[+-]\d", text.replace(MINUS, "-"))
    return torch.tensor([float(number) for number in found], dtype=torch.float64)


def test_contributions_are_a_layer_of_the_page_with_the_numbers_of_the_model(page, model, image):
    found = contributions(model, image[None])
    heads, predicted = found.heads[0].double(), NAMES[model(image[None]).argmax()]
    click_button(page, f"Contributions to {predicted}")
    press(page, ".", ".", "[")
    chosen = heads[1, 1]
    assert page.locator("figcaption").first.inner_text().startswith("Layer 1, head 1: ")
    assert_close(amounts_in(page.locator("figcaption").first.inner_text())[0], chosen.sum(), rtol=ROUNDING, atol=0)
    for sign, word in ((1, "for"), (-1, "against")):
        assert page.locator("#question").inner_text() == f"Patches that speak {word} {predicted}"
        largest = (sign * chosen[3:]).topk(5).values.clamp(min=0)
        shown = amounts_in(page.locator("#top").inner_text())
        assert_close(shown, sign * largest[largest > 0], rtol=ROUNDING, atol=0)
        shares = (sign * chosen[3:]).clamp(min=0) / chosen[3:].abs().max()  # one scale for both
        tile = pixels_of(page, page.locator("#matrix .map canvas").nth(5 + 2), 3, 4).view(12, 4)[:, :3]
        colours = shade(shares.float().view(1, 1, 1, 12), shares.float().view(1, 1, 12))[0, :, 0].T
        assert (tile - 255 * colours).abs().max() <= 2
        press(page, "r")
    of_others = torch.cat([amounts_in(text) for text in page.locator("#others button").all_inner_texts()])
    assert_close(of_others, chosen[:3], rtol=ROUNDING, atol=0)
    press(page, ",", ",", ",")
    assert page.locator("figcaption").first.inner_text().startswith("Layer 1, all heads: ")
    assert_close(amounts_in(page.locator("#masses").inner_text())[0], heads[1].sum(), rtol=ROUNDING, atol=1e-6)


def test_the_parts_of_a_logit_stand_beside_their_sum(page, model, image):
    found = contributions(model, image[None])
    press(page, "t")
    parts = numbers_in(page.locator("#sum").inner_text())
    expected = [found.heads.sum(), found.mlps.sum(), found.embedding.sum(), found.bias.sum(), found.logits.sum()]
    assert_close(parts, torch.stack(expected), rtol=0, atol=5.1e-3)
    press(page, "t")
    assert page.locator("#sum").is_hidden()


def test_contributions_of_two_heads_are_compared(page, model, image):
    heads = contributions(model, image[None]).heads[0].double()
    press(page, "t", ".", "c", ".")
    assert page.locator("figure:visible").count() == 2
    shown = amounts_in(" ".join(page.locator("figcaption").all_inner_texts()))
    assert_close(shown, torch.stack([heads[2, 1].sum(), heads[2, 0].sum()]), rtol=ROUNDING, atol=0)


def test_contributions_are_of_the_class_that_is_asked_about(model, image):
    page = data_of(explorer(model, image, class_names=NAMES, target=2, versus=4))
    found = contributions(model, image[None], 2, versus=4)
    assert page["asked"] == "kind C rather than kind E"
    assert page["mapNames"] == ["relevance: why kind C, and not kind E?"]
    assert page["terms"]["logit"] == pytest.approx(found.logits.item())
    assert_close(unpack(page["terms"]["heads"], torch.float32).view(found.heads[0].shape), found.heads[0])


def test_a_model_whose_logits_are_no_such_sum_says_why(browser, image, tmp_path):
    pruned = prune_heads(contrasted(), {2: [0]})
    with opened(browser, explorer(pruned, image, maps={}), tmp_path) as page:
        assert page.locator("#kinds").is_hidden()
        said = "No contributions: the layers of VisionTransformer have 3 to 4 heads"
        assert page.locator("#sum").inner_text().startswith(said)
        press(page, "t")
        assert page.locator("#question").inner_text() == "Class token attends to"


def test_a_map_of_the_package_says_what_it_is_and_one_of_ones_own_does_not(page_text, model, image):
    assert data_of(page_text)["mapWords"] == [str(MAPS["relevance"])]
    assert data_of(explorer(model, image, maps={"mine": torch.rand(3, 4)}))["mapWords"] == [""]


def test_two_heads_are_compared_side_by_side(page, model, image):
    truth, _ = captured(model, image)
    press(page, ".", "c", ".", ".", "[")
    assert page.locator("figcaption").all_inner_texts() == ["Layer 1, head 2", "Layer 2, head 0"]
    chosen, compared = truth[1, 2, 0].double(), truth[2, 0, 0].double()
    order = chosen[3:].topk(5).indices
    shown = shares_in(page.locator("#top").inner_text()).view(5, 2)
    assert_close(shown[:, 1], compared[3:][order], rtol=0.02, atol=1e-4)
    (common,) = shares_in(page.locator("#masses").inner_text())
    assert common == pytest.approx(torch.minimum(chosen, compared).sum().item(), rel=0.015 + ROUNDING)
    press(page, "c")
    assert page.locator("figure:visible").count() == 1


def test_a_layer_behind_one_without_heads_is_named_by_its_module_too(browser, model, image, tmp_path):
    pruned = prune_heads(model, {1: range(4), 2: [0]})
    text = explorer(pruned, image, maps={})
    assert data_of(text)["modules"] == ["", "blocks.2"]
    with opened(browser, text, tmp_path) as page:
        assert page.locator("figcaption").first.inner_text() == "Layer 1 (blocks.2), mean of heads"


def test_a_map_that_is_zero_or_negative_lists_no_patch(browser, model, image, tmp_path):
    maps = {"zero": torch.zeros(3, 4), "against": -torch.rand(3, 4), "3 > 2": torch.ones(3, 4).int()}
    with opened(browser, explorer(model, image, maps=maps), tmp_path) as page:
        for name, ends in (("zero", "0"), ("against", "0 and below")):
            press(page, "m")
            assert page.locator("figcaption").first.inner_text() == name
            assert page.locator("#top li").count() == 0
            assert page.locator("#scale").inner_text().split("\n")[0] == ends
            assert "no patch speaks for it" in page.locator("#scale").inner_text()
        press(page, "m")
        assert "1.0 times the mean" in page.locator("#scale").inner_text()


def test_a_head_of_the_page_is_the_one_that_pruning_removes(page, model, image):
    press(page, "[", ".", ".", ".", "x")
    assert page.locator("figcaption").first.inner_text() == "Layer 1, head 2"
    with torch.no_grad():
        pruned = prune_heads(model, {1: [2]})(image[None])[0]
    shown = logits_shown(page, column=2)
    expected = pruned[[NAMES.index(name) for name in shown]]
    assert_close(torch.stack(list(shown.values())), expected, rtol=0, atol=5.1e-3)


def test_clicking_locks_a_patch_and_lets_it_go(page, model, image):
    truth, _ = captured(model, image)
    click(page, 0, 1)
    hover(page, 2, 3)
    assert page.locator("#question").inner_text() == "Row 0, column 1 attends to"
    assert page.locator("#lock").is_visible()
    under = shares_in(page.locator("#under").inner_text())[0]
    assert_close(under, truth[LAST, :, 3 + 1, 3 + 11].mean().double(), rtol=0.02, atol=0)
    click(page, 0, 1)
    assert page.locator("#lock").is_hidden()
    click(page, 0, 1)
    press(page, "Escape")
    assert page.locator("#lock").is_hidden()
    click_button(page, "register 1")
    hover(page, 2, 3)
    assert page.locator("#question").inner_text() == "Register 1 attends to"
    assert_shows(page, truth[LAST, :, 2].mean(dim=0))


def test_reversing_shows_the_attention_to_a_patch(page, model, image):
    truth, _ = captured(model, image)
    hover(page, 2, 0)
    press(page, "r")
    assert page.locator("#question").inner_text() == "Row 2, column 0 is attended to by"
    assert page.locator("#reverse").get_attribute("aria-pressed") == "true"
    assert_shows(page, truth[LAST, :, :, 3 + 8].mean(dim=0), others=0.015 + ROUNDING)


def test_keys_and_slider_move_patch_layer_and_head(page, model, image):
    truth, _ = captured(model, image)
    press(page, "ArrowUp", "ArrowUp", "ArrowUp", "ArrowLeft", "[", ".", "h")  # from the class token to the middle first
    assert page.locator("#question").inner_text() == "Row 0, column 1 attends to"
    assert page.locator("#layer-name").inner_text() == "Layer 1 (0 to 2)"
    assert_shows(page, truth[1, 1, 3 + 1])
    press(page, "PageUp", "PageUp", "]", "]", "]", "PageDown", "H", ",", ",")
    assert page.locator("#layer-name").inner_text() == "Layer 2 (0 to 2)"
    assert_shows(page, truth[2, :, 3 + 1].mean(dim=0))
    page.focus("#layer")
    press(page, "ArrowLeft")
    assert page.locator("#layer-name").inner_text() == "Layer 1 (0 to 2)"
    assert page.locator("#question").inner_text() == "Row 0, column 1 attends to"
    click_button(page, "Layer 0, head 2", exact=True)
    assert_shows(page, truth[0, 2, 3 + 1])


def test_switching_off_shows_the_logits_of_the_ablated_model(page, model, image):
    _, intact = captured(model, image)

    def check(logits):
        shown = logits_shown(page, column=2)
        assert len(shown) >= 5
        rows = [NAMES.index(name) for name in shown]
        assert_close(torch.stack(list(shown.values())), logits[rows], rtol=0, atol=5.1e-3)
        probabilities = torch.stack(list(logits_shown(page, column=1, read=shares_in).values())).float()
        assert_close(probabilities, logits.softmax(0)[rows], rtol=0, atol=6e-4)
        assert NAMES[logits.argmax()] in page.locator("#verdict").inner_text()

    check(intact)
    press(page, ".", ".", "x")
    check(without(model, image, LAST, [1]))
    assert page.locator("#matrix .off").count() == 1
    with settled(page):
        page.click("#layer-off")
    check(without(model, image, LAST, range(4)))
    assert page.locator("#matrix .off").count() == 4 + 1
    click_button(page, "Switch off all of layer 0")
    check(without(model, image, 0, range(4)))
    page.get_by_role("button", name="Layer 1, head 3", exact=True).hover()
    click_button(page, "Switch off layer 1, head 3")
    check(without(model, image, 1, [3]))
    click_button(page, "Switch off layer 1, head 3")
    check(intact)


def test_tapping_locks_on_a_narrow_screen_without_sideways_scrolling(browser, page_text, tmp_path):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with opened(browser, page_text, tmp_path, **phone) as page:
        with settled(page):
            page.touchscreen.tap(*middle_of(page, 1, 1))
        assert page.locator("#question").inner_text() == "Row 1, column 1 attends to"
        assert page.locator("#lock").is_visible()
        page.locator("#layer-off").tap()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# Of all texts of the page against what is behind them, by WCAG.
LOWEST_CONTRAST = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const luminance = colour => parse(colour).slice(0, 3)
        .reduce((sum, c, i) => sum + [0.2126, 0.7152, 0.0722][i] * linear(c / 255), 0.05);
    const behind = box => {
        const colour = getComputedStyle(box).backgroundColor, parts = parse(colour);
        return parts.length < 4 || parts[3] === 1 ? colour : behind(box.parentElement);
    };
    const isText = node => node.nodeType === Node.TEXT_NODE && node.textContent.trim();
    const boxes = [...document.querySelectorAll("main *")]
        .filter(box => box.checkVisibility() && [...box.childNodes].some(isText));
    return Math.min(...boxes.map(box => {
        const [one, other] = [luminance(getComputedStyle(box).color), luminance(behind(box))];
        return Math.max(one, other) / Math.min(one, other);
    }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_on_any_screen_texts_are_legible_nothing_overflows_and_tiles_stand_beside_the_image(
    browser, page_text, tmp_path, width, scheme
):
    with opened(browser, page_text, tmp_path, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        press(page, "c", ".", "x")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(LOWEST_CONTRAST) >= 4.5
        image, tiles = (page.locator(name).bounding_box() for name in ("#stage", "#matrix"))
        assert (tiles["x"] > image["x"] + image["width"]) == (width >= 800)
        assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 248)") == (
            scheme == "light"
        )


def test_a_printed_page_is_light_and_has_its_colours_and_no_controls(browser, page_text, tmp_path):
    with opened(browser, page_text, tmp_path, color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        for shown in ("#title", "#subtitle", "#stage", "#scale", "#top", "#matrix", "#classes"):
            assert page.locator(shown).is_visible()
        for hidden in ("#layer", "#reverse", "#compare", "#kinds", "#head-off", ".keys", "#hint", "#hint-number"):
            assert page.locator(hidden).is_hidden()
        assert page.locator(".layer-switch:visible").count() == 0
        assert page.locator("#overlay").evaluate("canvas => getComputedStyle(canvas).printColorAdjust") == "exact"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 31, 35)"


def test_the_page_names_the_file_and_the_model_and_says_what_attention_does_not_show(browser, model, image, tmp_path):
    text = explorer(model, image, class_names=NAMES, model_name="best.ckpt", image_name="a\x1b[2J<b>.jpg", maps={})
    with opened(browser, text, tmp_path) as page:
        assert page.locator("h1").inner_text().startswith("best.ckpt predicts kind ")
        assert page.locator("#subtitle").inner_text().startswith(r"a\x1b[2J<b>.jpg · 3 layers")
        assert "not what it would do without it" in page.locator("header").inner_text()
        assert page.locator("#kinds button").count() == 2  # attention and contributions


def test_a_map_says_that_it_was_not_measured_on_this_model_and_attention_does_not(browser, page_text, tmp_path):
    with opened(browser, page_text, tmp_path) as page:
        assert NOT_MEASURED not in page.locator("main").inner_text()
        with settled(page):
            page.locator("#kinds button").nth(1).click()
        assert NOT_MEASURED in page.locator("#about").inner_text()


def test_names_are_shown_as_text(browser, model, image, tmp_path):
    hostile = '<b id="x">&amp;</script><script>window.hacked = 1</script>'
    with opened(browser, explorer(model, image, class_names=[hostile] * 7), tmp_path) as page:
        assert page.locator("#classes tbody th").first.inner_text() == hostile
        assert page.title() == f"VisionTransformer predicts {hostile}"
        assert page.evaluate("window.hacked === undefined && !document.getElementById('x')")


def test_two_explorers_in_one_notebook_are_independent(browser, page_text, tmp_path):
    with opened(browser, f"<!doctype html><meta charset='utf-8'>{page_text._repr_html_() * 2}", tmp_path) as page:
        first, second = (page.locator("iframe").nth(i).content_frame for i in range(2))
        with settled(page):
            first.locator("#reverse").click()
            second.locator("#shared").click()
        for frame, name in ((first, "reverse"), (second, "shared")):
            assert frame.locator(".controls [aria-pressed=true]").get_attribute("id") == name


@pytest.mark.parametrize(
    ("kwargs", "start"),
    [
        ({"pool": "mean", "class_token": False}, "Row 1, column 2 attends to"),
        ({"in_channels": 1, "image_size": (8, 20)}, "Class token attends to"),
    ],
    ids=["no class token", "grey"],
)
def test_models_without_class_token_and_grey_images_are_shown(browser, tmp_path, kwargs, start):
    model = contrasted(**kwargs)
    with opened(browser, explorer(model, image_for(model)), tmp_path) as page:
        assert page.locator("#question").inner_text() == start
        assert page.locator("#others button").count() == model.num_prefix_tokens


def test_one_logit_is_shown_without_a_probability(browser, image, tmp_path):
    model = VisionTransformer(16, 8, embed_dim=24, depth=2, num_heads=3, num_classes=1).eval()
    with opened(browser, explorer(model, torch.randn(3, 16, 16)), tmp_path) as page:
        assert re.fullmatch(r"Prediction: 0 \(logit \W?[0-9.]+\)", page.locator("#verdict").inner_text())
        assert "%" not in page.locator("#classes").inner_text()
