"""Draw docs/images/maps.png, three maps of three photographs by the packaged model, and all_maps.png, all of one.

python benchmarks/maps_picture.py
"""

from pathlib import Path

import torch
from einops import repeat

import vit
from vit.commands.photographs import read_images
from vit.explain import CLASS_AGNOSTIC, CONTROLS, explain, overlay
from vit.explain import METHODS as METHODS_AND_CONTROLS
from vit.explain.panels import Bar, Look, Panel, Picture, draw_panels

ROOT = Path(__file__).parents[1]
PICTURE, ALL = (ROOT / f"docs/images/{name}.png" for name in ("maps", "all_maps"))
CLASSES = ("cat", "frog", "ship")
METHODS = ("relevance", "rollout", "random")
LARGER = 6  # times as many pixels a side
ACROSS = 7  # of the photograph and its twenty maps
LOOK = Look(side=1.92, letters=12, column=1.92)  # letters that a telephone shows
BAR = Bar("value of a patch, as a share of the largest one on the map", ("0", "0.5", "1"))


def kind_of(method: str) -> str:
    """Return what the map of a method depends on, in words."""
    if method in CONTROLS:
        return "a control"
    return "any class" if method in CLASS_AGNOSTIC else "why this class?"


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
        columns[f"{method}\n{kind_of(method)}"] = overlay(large, maps)
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


def draw_all() -> Picture:
    """Draw all maps of one photograph."""
    model = vit.load("cifar10")
    pixels, images = read_images([ROOT / "notebooks/cifar10/cat_0000.jpg"], model)
    large = repeat(pixels, "b c y x -> b c (y p) (x q)", p=LARGER, q=LARGER)
    panels = [Panel(large[0], "", "photograph", "")]
    for method in METHODS_AND_CONTROLS:
        panels.append(Panel(overlay(large, explain(model, images, method))[0], "", f"{method}\n{kind_of(method)}", ""))
    rows = [panels[start : start + ACROSS] for start in range(0, len(panels), ACROSS)]
    return draw_panels(rows, LOOK, title="A cat by all methods", bar=BAR, description="All maps of one photograph")


if __name__ == "__main__":
    for path, picture in ((PICTURE, draw()), (ALL, draw_all())):
        print(picture.save(path))
