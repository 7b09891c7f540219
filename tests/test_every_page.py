"""Every page of the package, in a browser: its width, its rules of accessibility, its words, and its print."""

import io
import json
from contextlib import contextmanager

import pytest
import torch
from PIL import Image

import vit
from tests.browser import axe_core, opened, violations
from vit.analysis.answer import Answer
from vit.analysis.answers_page import SHOWN, write_page
from vit.explain import explorer, text_explorer
from vit.explain.evaluation.findings import Finding, TrustReport
from vit.glossary import ANALYSIS, EVERYWHERE, EXPLORER, FACTS, MAPS, RUN, TRUST
from vit.model.decoder import ImageToSequence, TransformerDecoder
from vit.objectives import ViTClassifier
from vit.runs.report import CURVES, write_report
from vit.support.captioned import draw_captioned
from vit.support.words import find_word

LONG = "a_name_without_any_place_to_break_" * 4
# Labels that say themselves what they are.
PLAIN = {
    "images",
    "file",
    "predicted",
    "true class",
    "Device",
    "torch",
    "Tested file",
    "Command",
    "Found",
    "lowest F1 first",
}


def write_explorer(folder):
    torch.manual_seed(0)
    model = vit.VisionTransformer((12, 16), 4, embed_dim=24, depth=3, num_heads=4, num_classes=7, num_registers=2)
    maps = {f"{name}: why {LONG}?": torch.rand(3, 4) for name in ("relevance", "rollout")}
    names = [LONG, *"bcdefg"]
    page = explorer(model.eval(), torch.randn(3, 12, 16), maps=maps, class_names=names, target=0, image_name=LONG)
    return page.save(folder / "explorer.html")


def write_text(folder):
    encoder = vit.VisionTransformer((8, 12), 4, 1, embed_dim=24, depth=2, num_heads=3)
    decoder = TransformerDecoder(11, 24, 2, 2, 20, context_dim=24)
    reader = ImageToSequence(encoder, decoder, start=9, end=10).eval()
    tokens = torch.arange(16) % 9
    return text_explorer(reader, torch.randn(1, 8, 12), tokens, [*"0123456789abcde", "end"]).save(folder / "text.html")


def write_trust(folder):
    levels = [("red", "rollout: class"), ("green", "integrated_gradients: faith"), ("amber", "attention")]
    findings = [Finding(level, about, f"it is {LONG}", "more images would decide it") for level, about in levels]
    return TrustReport(findings, images=31, intervals=23).save(folder / "trust.html", subject=LONG)


def write_analysis(folder):
    Image.new("RGB", (1500, 200), "white").save(folder / "pruning.png")
    columns = {name: [[0.5, 0.25], [1.0, -0.125]] for name in SHOWN} | {"kind": [["sink", "local"], ["content"] * 2]}
    found = Answer("Two are local.", "Before training, none.", {"pruning.png": "Accuracy"}, columns)
    answers = {f"What do the heads of {LONG} do?": found, "Is attention low-rank?": "it has negative weights"}
    return write_page(folder, f"What {LONG} does", [LONG], answers, ["python", "-m", "vit.analysis", LONG])


def write_run(folder):
    score = {"precision": 0.9, "recall": None, "f1": 0.85, "roc_auc": 0.9, "average_precision": 0.8, "support": 30}
    scores = {"accuracy": 0.75, "count": 40, "balanced_accuracy": 0.8, "calibration_error": 0.03, "roc_auc": 0.9}
    scores |= {"classes": [score | {"name": name} for name in (LONG, "cat")], "loss": 0.6}
    facts = {
        "parameters": 1234,
        "epochs": 3,
        "steps": 100,
        "seed": 7,
        "device": LONG,
        "precision": "32",
        "petaflop": 0.1,
    }
    results = {"experiment": LONG, "test_accuracy": 0.75, "val_accuracy": 0.7, "command": f"python {LONG}", **facts}
    (folder / "results.json").write_text(json.dumps(results | {"scores": scores, "inventory": [LONG]}))
    (folder / "config.yaml").write_text(f"name: {LONG}\n")
    for picture in (CURVES, *ViTClassifier.pictures):
        Image.new("RGB", (1000, 300), "white").save(folder / f"{picture.name}.png")
    photographs = [torch.full((3, 8, 8), 200, dtype=torch.uint8)] * 3
    look = {"across": 3, "width": 2.0, "fontsize": 9}
    draw_captioned(photographs, ["cat"] * 3, ["black"] * 3, "Mistakes", folder / "mistakes.png", **look)
    return write_report(folder)


WRITTEN = {
    "explorer": (write_explorer, EXPLORER | MAPS),
    "text": (write_text, {"rollout": MAPS["rollout"]}),
    "trust": (write_trust, TRUST),
    "analysis": (write_analysis, ANALYSIS),
    "run": (write_run, RUN | {name: word for name, word in FACTS.items() if name not in RUN}),
}


@pytest.fixture(scope="module", params=WRITTEN)
def page(browser, request, tmp_path_factory):
    """One page in one tab; tests change its width and its scheme, and leave the rest as it opens."""
    path = WRITTEN[request.param][0](tmp_path_factory.mktemp(request.param))
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto(path.as_uri())
        tab.wait_for_selector("main:not([hidden])")
        tab.kind = request.param
        yield tab


@contextmanager
def shown(page, width=1400, scheme="light", media="screen"):
    """The page as a screen or paper of a width shows it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(media=media, color_scheme=scheme)
    try:
        yield
    finally:
        page.emulate_media(media="screen", color_scheme="light")


@pytest.mark.parametrize(("width", "media"), [(400, "screen"), (800, "screen"), (1400, "screen"), (720, "print")])
def test_nothing_is_wider_than_the_screen_or_the_paper(page, width, media):
    with shown(page, width, media=media):
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1400, "light"), (1400, "dark")])
def test_no_rule_of_wcag_is_broken(page, width, scheme):
    with shown(page, width, scheme):
        assert violations(page, axe_core()) == []


def test_what_is_printed_from_a_dark_screen_stands_out_from_white_paper(page):
    with shown(page, 720, "dark", media="print"):
        assert violations(page, axe_core(), ["color-contrast"]) == []


LABELS = "thead th, dl.headline dt, dl.facts dt, dl.answer dt, .level, li > strong, #others button"
READ = """boxes => boxes.map(box => (box.querySelector('.word') ?? box.firstChild).textContent.trim())"""


def test_every_label_of_columns_and_legends_is_a_word_of_the_glossary_or_plain(page):
    # The columns of a text are its tokens; what its rows are is said above.
    labels = page.locator("header .word" if page.kind == "text" else LABELS).evaluate_all(READ)
    assert len(labels) >= 3
    words = WRITTEN[page.kind][1]
    unnumbered = [label.rstrip("0123456789 ") for label in labels]
    assert [label for label in unnumbered if label not in PLAIN and find_word(label, words, EVERYWHERE) is None] == []


def test_a_word_opens_its_meaning_by_keyboard_and_escape_closes_it(page):
    with shown(page, 400):
        word = page.locator("button.word").first
        meaning = page.locator(f"#{word.get_attribute('aria-describedby')}")
        assert meaning.is_hidden()
        word.focus()
        page.keyboard.press("Enter")
        assert meaning.is_visible()
        assert word.inner_text().lower() in meaning.inner_text().lower()
        box = meaning.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
        page.keyboard.press("Escape")
        assert meaning.is_hidden()
        assert word.evaluate("word => document.activeElement === word")


def test_paper_is_light_lists_the_meanings_and_keeps_colours(page):
    with shown(page, 800, "dark", media="print"):
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 31, 35)"
        meanings = page.locator(".meaning")
        assert meanings.count() >= 3
        assert all(meaning.is_visible() for meaning in meanings.all())
        assert page.evaluate("getComputedStyle(document.querySelector('main *')).printColorAdjust") == "exact"


def test_a_dark_screen_has_a_dark_page(page):
    with shown(page, 1400, "dark"):
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 20, 23)"


def test_on_a_dark_page_photographs_are_as_taken_and_the_paper_around_them_is_dark(browser, tmp_path):
    path = write_run(tmp_path)
    with opened(browser, path, color_scheme="dark") as page:
        figure = page.locator("figure.photographs")
        assert figure.count() == 1
        counts = Image.open(io.BytesIO(figure.screenshot())).convert("L").histogram()
    total = sum(counts)
    assert sum(counts[195:206]) > 0.3 * total  # the photographs are of the grey 200
    assert sum(counts[:60]) > 0.2 * total
    assert sum(counts[240:]) == 0  # no white paper
