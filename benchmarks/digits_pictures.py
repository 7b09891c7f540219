"""The pictures of docs/ that the run of `make demo` gives: its curves, its mistakes, its analysis, other attention.

    vit-attention analysis --checkpoint runs/digits/version_0 --out analysed
    python benchmarks/digits_pictures.py runs/digits/version_0 analysed/index.html

Needs Chromium: `playwright install chromium`.
"""

import argparse
import shutil
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import sync_playwright

import vit
from vit.commands.models import find_model
from vit.data import Digits
from vit.explain import adversarial_attention
from vit.explain.evaluation.adversarial_figure import draw_adversarial

ROOT = Path(__file__).parents[1]
WIDTH = 640  # pixels of the page: its letters can be read where 400 are left of them
SHOWN = "Which layers need their heads?"
LEAVE = """shown => document.querySelectorAll("main > *").forEach(
    part => part.querySelector("h2")?.textContent === shown || part.remove())"""
IMAGES = 3


def draw(run: Path, page: Path, folder: Path) -> None:
    """Write the pictures of a run and of the page of its analysis into a folder."""
    for name in ("curves", "mistakes"):
        shutil.copyfile(run / f"{name}.png", folder / f"{name}.png")
    shutil.copyfile(page.with_name("pruning.png"), folder / "pruning.png")
    data = Digits()
    data.setup("test")
    pixels = data.sets["test"].images[:IMAGES]
    found = adversarial_attention(vit.load(find_model(str(run))), (pixels / 255 - data.mean[0]) / data.std[0])
    draw_adversarial(pixels, found, folder / "adversarial.png", data.class_names)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=2)
        view.goto(page.resolve().as_uri())
        view.evaluate(LEAVE, SHOWN)
        view.locator("body").screenshot(path=folder / "analysis.png")
        browser.close()
    trim_above(folder / "analysis.png")


def trim_above(picture: Path) -> None:
    """Cut the empty band above a picture of a page to the width of its left margin."""
    with Image.open(picture) as opened:
        page = opened.convert("RGB")
    left, top, _, _ = ImageChops.difference(page, Image.new("RGB", page.size, page.getpixel((0, 0)))).getbbox()
    page.crop((0, max(0, top - left), *page.size)).save(picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("page", type=Path, help="page of its analysis")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs/images", help="of the pictures")
    options = parser.parse_args()
    draw(options.run, options.page, options.folder)
