"""Draw docs/images/cat.png and temple.png: maps of photographs as taken, of a class of the model and of none.

python benchmarks/photograph_picture.py
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from sklearn.datasets import load_sample_image

from vit.commands import explain

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Draw the pictures as the command does."""
    with TemporaryDirectory() as folder:
        Image.fromarray(load_sample_image("china.jpg")).save(Path(folder) / "temple.jpg", quality=90)
        shutil.copyfile(DOCS / "photographs/cat.jpg", Path(folder) / "cat.jpg")
        explain.main([folder, "--out", f"{folder}/explained"])
        for name in ("cat", "temple"):
            shutil.copyfile(Path(folder) / f"explained/{name}_relevance.png", DOCS / f"images/{name}.png")
            print(DOCS / f"images/{name}.png")


if __name__ == "__main__":
    main()
