"""Draw docs/images/removal.png, how a map is scored, and known_answers.png, images whose answer is known.

python benchmarks/trust_pictures.py
"""

from pathlib import Path

import torch
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import vit
from vit.commands.photographs import find_images, read_images
from vit.data.crowded import CrowdedDigits, crowded_digits
from vit.data.planted import PlantedDigits, planted_digits
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.ground_truth import mosaics
from vit.explain.figures import draw_curves
from vit.explain.maps import Subject, signed_map
from vit.support.plotting import GREY, ORANGE

ROOT = Path(__file__).parents[1]
REMOVAL, ANSWERS = (ROOT / f"docs/images/{name}.png" for name in ("removal", "known_answers"))
METHODS = ("relevance", "rollout", "random")
CLASSES = "horse_0000", "dog_0001", "truck_0000", "cat_0000"
HALF = 16  # pixels of a side of a quarter of a mosaic


def draw_removal() -> None:
    """Draw the two curves of three maps, and the area between them."""
    model = vit.load("cifar10")
    _, images = read_images(find_images([ROOT / "notebooks/cifar10"]), model)
    subject = Subject(model, images)
    draw_curves({method: removal_curves(subject, signed_map(method, subject)) for method in METHODS}, REMOVAL)


def show(axes: Axes, pixels: Tensor, box: tuple[int, int, int, int], title: str, answer: str, cells: int = 1) -> None:
    """Show an image (C, H, W) with a frame around first row, first column, height and width, and the answer below.

    ``cells`` is how many images of equal size stand in a row, with lines between them.
    """
    row, column, height, width = box
    axes.imshow(rearrange(pixels, "c y x -> y x c").expand(-1, -1, 3).numpy())
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), width, height, fill=False, ec=ORANGE, lw=2.5))
    side = pixels.shape[-1]
    for line in (side * number / cells - 0.5 for number in range(1, cells)):
        axes.plot([-0.5, side - 0.5], [line, line], [line, line], [-0.5, side - 0.5], color=GREY, lw=0.6)
    axes.text(0.5, -0.02, f"answer: {answer}", transform=axes.transAxes, va="top", ha="center")
    axes.set_title(title)
    axes.set_axis_off()


def draw_answers() -> None:
    """Draw an image of each kind whose answer is known, with a frame around the answer."""
    figure = Figure(figsize=(9, 4.1), layout="constrained")
    plots = figure.subplots(1, 3)
    titles = ("digit among digits:\nwhich one decides the class?", "digit in clutter:\nwhere is the digit?")
    kinds = (crowded_digits, CrowdedDigits), (planted_digits, PlantedDigits)
    for axes, title, (drawn, data) in zip(plots, titles, kinds, strict=False):
        images, labels, boxes = drawn("test")
        answer, cells = f"the {data.class_names[int(labels[0])]}", 4 if data is CrowdedDigits else 1
        show(axes, images[0], tuple(boxes[0].tolist()), title, answer, cells)
    pixels, _ = read_images([ROOT / f"notebooks/cifar10/{name}.jpg" for name in CLASSES], vit.load("cifar10"))
    tiled, cells, _ = mosaics(pixels, torch.arange(4), torch.Generator().manual_seed(0))
    row, column = divmod(cells[0].item(), 2)
    name = CLASSES[0].split("_")[0]
    show(plots[2], tiled[0], (HALF * row, HALF * column, HALF, HALF), f"mosaic:\nwhere is the {name}?", f"the {name}")
    figure.suptitle("Tests with a known answer: the highest patch should lie in the frame", y=1.02)
    figure.savefig(ANSWERS, dpi=120, bbox_inches="tight", pad_inches=0.1)


if __name__ == "__main__":
    draw_removal()
    draw_answers()
    print(REMOVAL, ANSWERS, sep="\n")
