"""The picture of the explorer in docs/: the packaged model on a photograph of the repository, a patch held.

    python benchmarks/explorer_picture.py [--picture docs/images/explorer.png]

Needs Chromium: `playwright install chromium`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import vit
from vit.commands.photographs import read_images
from vit.explain import explorer

ROOT = Path(__file__).parents[1]
IMAGE, HELD = ROOT / "notebooks/cifar10/horse_0000.jpg", (2, 13)  # row and column of a patch on the edge of the head
SCREEN = {"width": 800, "height": 688}  # the narrowest with tiles beside the image; down to the last row of tiles


def draw(picture: Path) -> None:
    """Write the page to a temporary folder, and a picture of its upper part."""
    model = vit.load("cifar10")
    _, images = read_images([IMAGE], model)
    settings = {name: model.pretrained_cfg[name] for name in ("class_names", "mean", "std")}
    page = explorer(model, images[0], model_name="cifar10", image_name=IMAGE.name, **settings)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport=SCREEN, device_scale_factor=1.5)
        view.goto(page.save(Path(folder) / "page.html").as_uri())
        stage = view.locator("#stage")
        box = stage.bounding_box()
        rows, columns = model.patch_embed.grid_size
        at = {"x": box["width"] * (HELD[1] + 0.5) / columns, "y": box["height"] * (HELD[0] + 0.5) / rows}
        stage.click(position=at)
        view.mouse.move(0, 0)
        view.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/explorer.png", help="PNG file to write")
    draw(parser.parse_args().picture)
