"""Draw docs/images/maps.png, four maps of two photographs by the packaged model, and all_maps.png, all of one.

python benchmarks/maps_picture.py
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from explanations import of_recipe
from records import RESULTS
from torch import Tensor

import vit
from vit.commands.photographs import read_images
from vit.explain import CLASS_AGNOSTIC, CONTROLS, explain, overlay
from vit.explain import METHODS as METHODS_AND_CONTROLS
from vit.explain.panels import Bar, Look, Panel, Picture, draw_panels

ROOT = Path(__file__).parents[1]
PICTURE, ALL = (ROOT / f"docs/images/{name}.png" for name in ("maps", "all_maps"))
IMAGES = ("horse_0000", "truck_0000")  # an animal and a thing that a reader recognises at 32 pixels
METHODS = ("gradcam", "relevance", "rollout", "random")
LARGER = 6  # times as many pixels a side
KINDS = ("why this class?", "any class", "control")  # what the map of a method depends on
ACROSS = 6  # panels of a row of all maps
LOOK = Look(side=1.92, letters=12, column=1.92)  # letters that a telephone shows
BAR = Bar("value of a patch, as a share of the largest one on the map", ("0", "0.5", "1"))


def kind_of(method: str) -> str:
    """Return what the map of a method depends on, in words."""
    if method in CONTROLS:
        return KINDS[2]
    return KINDS[1] if method in CLASS_AGNOSTIC else KINDS[0]


def enlarged(pixels: Tensor) -> Tensor:
    """Return images (B, C, H, W) with more pixels, smooth, as an animal of 32 pixels is recognised more easily so."""
    sizes = [LARGER * size for size in pixels.shape[-2:]]
    return F.interpolate(pixels.float() / 255, size=sizes, mode="bicubic").clamp(0, 1)


def scores_of_packaged() -> dict[str, float]:
    """Return the removal area (tokens) of each map that was measured on the packaged model."""
    (cell,) = of_recipe(json.loads((RESULTS / "explanations.json").read_text()), "cifar10_showcase")
    return {row["method"]: row["drop"][0] for row in cell["photographs"]}


def scored(method: str, scores: dict[str, float]) -> str:
    """Return a method and its score, if it was measured."""
    score = f"{round(scores[method], 2) + 0.0:.2f}" if method in scores else "not measured"  # no -0.00
    return f"{method}\n{score}"


@torch.no_grad()
def draw() -> Picture:
    """Draw four maps of two photographs."""
    model = vit.load("cifar10")
    pixels, images = read_images([ROOT / f"notebooks/cifar10/{name}.jpg" for name in IMAGES], model)
    shares, predicted = model(images).softmax(dim=1).max(dim=1)
    names = [model.pretrained_cfg["class_names"][index] for index in predicted.tolist()]
    large = enlarged(pixels)
    columns = {"photograph": large}
    for method in METHODS:
        with torch.enable_grad():
            maps = explain(model, images, method)
        # Behind the colours of the control, a photograph would be seen that it ignores.
        behind = torch.full_like(large, 0.5) if method in CONTROLS else large
        columns[f"{method}\n{kind_of(method)}"] = overlay(behind, maps)
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
        for index in range(len(IMAGES))
    ]
    return draw_panels(
        rows,
        LOOK,
        title="Four maps of the same two photographs",
        bar=BAR,
        description="Two photographs, and four maps of each",
    )


def draw_all() -> Picture:
    """Draw all maps of one photograph."""
    model = vit.load("cifar10")
    pixels, images = read_images([ROOT / "notebooks/cifar10/horse_0000.jpg"], model)
    large, scores = enlarged(pixels), scores_of_packaged()
    groups: dict[str, list[Panel]] = {}
    for method in sorted(METHODS_AND_CONTROLS, key=lambda name: -scores.get(name, -1)):
        shown = overlay(large, explain(model, images, method))[0]
        groups.setdefault(kind_of(method), []).append(Panel(shown, "", scored(method, scores)))
    rows = []
    for kind in KINDS:
        panels = groups[kind]
        titles = [kind, *["\N{NO-BREAK SPACE}"] * (ACROSS - 1)]  # a line above each, so that the names are in one row
        panels[:ACROSS] = [panel._replace(title=title) for panel, title in zip(panels, titles, strict=False)]
        rows += [panels[start : start + ACROSS] for start in range(0, len(panels), ACROSS)]
    return draw_panels(
        rows,
        LOOK,
        title="One horse, all methods. Number: mean removal area of 50 test images (0: as good as a random order)",
        bar=BAR,
        description="All maps of one photograph",
    )


if __name__ == "__main__":
    for path, picture in ((PICTURE, draw()), (ALL, draw_all())):
        print(picture.save(path))
