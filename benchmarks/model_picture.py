"""Draw docs/images/model.png: what the packaged model makes of a photograph, step by step.

python benchmarks/model_picture.py
"""

from pathlib import Path

import vit
from vit.commands.photographs import read_images
from vit.explain.model_figure import draw_model

ROOT = Path(__file__).parents[1]
PHOTOGRAPH = ROOT / "notebooks/cifar10/horse_0000.jpg"


def main() -> None:
    """Draw the picture."""
    model = vit.load("cifar10", patch_stride=4)  # patches side by side
    pixels, images = read_images([PHOTOGRAPH], model)
    path = ROOT / "docs/images/model.png"
    draw_model(model, images[0], pixels[0], path, model.pretrained_cfg["class_names"])
    print(path)


if __name__ == "__main__":
    main()
