"""Draw docs/images/maps.png: three maps of three photographs by the packaged model, the last one a control.

python benchmarks/maps_picture.py
"""

from pathlib import Path

import torch
from einops import repeat

import vit
from vit.commands.photographs import read_images
from vit.explain import CLASS_AGNOSTIC, explain, overlay
from vit.explain.panels import Bar, Look, Panel, Picture, draw_panels

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/maps.png"
CLASSES = ("cat", "frog", "ship")
METHODS = ("relevance", "rollout", "random")
LARGER = 6  # times as many pixels a side
LOOK = Look(side=1.92, letters=12, column=1.92)  # letters that a telephone shows
BAR = Bar("value of a patch, as a share of the largest one on the map", ("0", "0.5", "1"))


@torch.no_grad()
def draw() -> Picture:
    """Draw three maps of three photographs."""
    model = vit.load("cifar10")
    pixels, images = read_images([ROOT / f"notebooks/cifar10/{name}_0000.jpg" for name in CLASSES], model)
    shares, predicted = model(images).softmax(dim=1).max(dim=1)
    names = [model.pretrained_cfg["class_names"][index] for index in predicted.tolist()]
    large = repeat(pixels, "b c y x -> b c (y p) (x q)", p=LARGER, q=LARGER)
    columns = {"photograph": large}
    for method in METHODS:
        with torch.enable_grad():
            maps = explain(model, images, method)
        title = f"{method}\nany class" if method in CLASS_AGNOSTIC else f"{method}\nwhy this class?"
        columns[title] = overlay(large, maps)
    rows = [
        [
            Panel(
                shown[index],
                "",
                title if index == 0 else "",
                f"{names[index]}, {100 * shares[index]:.0f} %" if shown is large else "",
            )
            for title, shown in columns.items()
        ]
        for index in range(len(CLASSES))
    ]
    return draw_panels(
        rows,
        LOOK,
        title="Three maps of the same predictions",
        bar=BAR,
        description="Three photographs, and three maps of each",
    )


if __name__ == "__main__":
    print(draw().save(PICTURE))
