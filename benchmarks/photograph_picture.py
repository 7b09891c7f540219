"""Draw docs/images/photograph.png: the map of a photograph as it was taken, of something that no class names.

python benchmarks/photograph_picture.py
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from sklearn.datasets import load_sample_image

from vit.commands import explain

PICTURE = Path(__file__).parents[1] / "docs/images/photograph.png"


def main() -> None:
    """Draw the picture as the command does."""
    with TemporaryDirectory() as folder:
        photograph = Path(folder) / "temple.jpg"
        Image.fromarray(load_sample_image("china.jpg")).save(photograph, quality=90)
        explain.main([str(photograph), "--out", f"{folder}/explained"])
        shutil.copyfile(Path(folder) / "explained/temple_relevance.png", PICTURE)
    print(PICTURE)


if __name__ == "__main__":
    main()
