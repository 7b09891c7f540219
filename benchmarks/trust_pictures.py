"""Draw docs/images/removal.png, how a map is scored, and known_answers.png, images whose answer is known.

python benchmarks/trust_pictures.py
"""

from pathlib import Path

import torch
from einops import rearrange, reduce
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import vit
from vit.commands.photographs import find_images, read_images
from vit.data.crowded import CrowdedDigits, crowded_digits
from vit.data.planted import PlantedDigits, planted_digits
from vit.explain.evaluation.faithfulness import STEPS, removal_curves
from vit.explain.evaluation.ground_truth import mosaics
from vit.explain.maps import Subject, signed_map
from vit.support.plotting import BLUE, GREY, ORANGE, plot_style

ROOT = Path(__file__).parents[1]
REMOVAL, ANSWERS = (ROOT / f"docs/images/{name}.png" for name in ("removal", "known_answers"))
METHODS = ("relevance", "rollout", "random")
CLASSES = "horse_0000", "dog_0001", "truck_0000", "cat_0000"
HALF = 16  # pixels of a side of a quarter of a mosaic


@plot_style
def draw_removal() -> None:
    """Draw the two curves of three maps, and the area between them."""
    model = vit.load("cifar10")
    _, images = read_images(find_images([ROOT / "notebooks/cifar10"]), model)
    subject, removed = Subject(model, images), [100 * step / STEPS for step in range(STEPS)]
    figure = Figure(figsize=(9, 3.3))
    plots = figure.subplots(1, len(METHODS), sharey=True)
    for axes, method in zip(plots, METHODS, strict=True):
        curves = removal_curves(subject, signed_map(method, subject))
        most, least = (reduce(part, "b t -> t", "mean").tolist() for part in (curves.most_first, curves.least_first))
        axes.plot(removed, least, color=ORANGE, marker="s", ms=4, label="least relevant removed first")
        axes.plot(removed, most, color=BLUE, marker="o", ms=4, label="most relevant removed first")
        axes.fill_between(removed, most, least, color=GREY, alpha=0.2, lw=0, label="removal area")
        axes.set_title(f"{method}: {curves.area_between.mean():.2f}")
        axes.set(xlabel="patches removed, %", ylim=(0, 1))
    plots[0].set_ylabel("probability of the class")
    figure.suptitle(f"Removal area: the mean of {len(images)} photographs, tokens left out")
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(REMOVAL)


def show(axes: Axes, pixels: Tensor, box: tuple[int, int, int, int], title: str, answer: str) -> None:
    """Show an image (C, H, W) with a frame around first row, first column, height and width, and the answer."""
    row, column, height, width = box
    axes.imshow(rearrange(pixels, "c y x -> y x c").expand(-1, -1, 3).numpy())
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), width, height, fill=False, ec=ORANGE, lw=2.5))
    label = {"color": "white", "backgroundcolor": ORANGE, "fontsize": 9, "va": "bottom", "ha": "right"}
    axes.text(column + width - 0.7, row - 0.2, answer, **label)
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
        show(axes, images[0], tuple(boxes[0].tolist()), title, f"the {data.class_names[int(labels[0])]}")
    pixels, _ = read_images([ROOT / f"notebooks/cifar10/{name}.jpg" for name in CLASSES], vit.load("cifar10"))
    tiled, cells, _ = mosaics(pixels, torch.arange(4), torch.Generator().manual_seed(0))
    row, column = divmod(cells[0].item(), 2)
    name = CLASSES[0].split("_")[0]
    show(plots[2], tiled[0], (HALF * row, HALF * column, HALF, HALF), f"mosaic:\nwhere is the {name}?", name)
    figure.suptitle("Tests with a known answer: the highest patch should lie in the frame", y=1.02)
    figure.savefig(ANSWERS, dpi=120, bbox_inches="tight", pad_inches=0.1)


if __name__ == "__main__":
    draw_removal()
    draw_answers()
    print(REMOVAL, ANSWERS, sep="\n")
