"""What maps of a trained ViT are worth: on photographs by taking patches away, on planted digits by a known answer.

Scores every method of ``vit.explain`` over CIFAR-10 images with a checkpoint of ``configs/cifar10_quick.yaml``,
replaces attention by uniform attention, compares methods on planted digits with a checkpoint of
``configs/planted_digits.yaml`` and on mosaics of the photographs, and times rollout against the plain forward pass.
Writes explanations.md, explanations.json and two plots.

    python benchmarks/explanations.py --photos data/cifar10-jpeg/test --checkpoint RUN/checkpoints/last.ckpt
        --planted RUN/checkpoints/last.ckpt [--images 500] [--output benchmarks/results]
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, markdown_table, origin
from torch import Tensor

import vit
from vit.data.files import decode, find_files
from vit.data.planted import planted_digits
from vit.explain import Scores, explain, localise, score
from vit.explain.figures import draw_scores
from vit.explain.ground_truth import cells_of_boxes, cells_of_quadrants, mosaics
from vit.explain.sanity import uniform_attention

BATCH = 100
ROUNDS = 9


def normalised(pixels: Tensor, model: vit.VisionTransformer) -> Tensor:
    """Images uint8 (B, C, H, W) as the model takes them."""
    mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
    return (pixels / 255 - mean) / std


def photographs(folder: Path, count: int, model: vit.VisionTransformer) -> tuple[Tensor, Tensor]:
    """A random sample of the images in class folders, always the same, and their labels."""
    files = find_files(folder)
    chosen = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:count].tolist()
    names = model.pretrained_cfg["class_names"]
    embed = model.patch_embed
    pixels = torch.stack([decode(files[i], embed.image_size, embed.in_channels) for i in chosen])
    return normalised(pixels, model), torch.tensor([names.index(files[i].parent.name) for i in chosen])


def rollout_cost(model: vit.VisionTransformer, images: Tensor) -> float:
    """Time of the rollout of a batch over that of its plain forward pass, the median of interleaved rounds."""
    ratios = []
    for _ in range(ROUNDS):
        with torch.no_grad():
            start = time.perf_counter()
            model(images)
            plain = time.perf_counter() - start
        start = time.perf_counter()
        explain(model, images, "rollout")
        ratios.append((time.perf_counter() - start) / plain)
    return statistics.median(ratios)


def table_of(scores: Scores, columns: list[str]) -> str:
    """Chosen columns, the best first, as Markdown."""
    rows = []
    for row in sorted(scores.rows, key=lambda row: -row[columns[0]].mean):
        cells = {name: f"{row[name]:.2g}" if isinstance(row[name], float) else str(row[name]) for name in columns}
        rows.append({"method": row["method"]} | cells)
    return markdown_table(rows)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder with a folder of images for each class")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a model trained on such images")
    parser.add_argument("--planted", type=Path, required=True, help="checkpoint of configs/planted_digits.yaml")
    parser.add_argument("--images", type=int, default=500, help="photographs, and planted digits (default: 500)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    made = origin()

    model = vit.load(arguments.checkpoint)
    images, labels = photographs(arguments.photos, arguments.images, model)
    start = time.perf_counter()
    scores = score(model, images.split(BATCH))
    seconds = time.perf_counter() - start
    uniform = uniform_attention(model, images, labels)
    cost = rollout_cost(model, images[:BATCH])
    tiled, cells, _ = mosaics(images, labels, torch.Generator().manual_seed(0))
    tiles = localise(model, tiled, labels, cells_of_quadrants(cells, model.patch_embed.grid_size))

    reader = vit.load(arguments.planted)
    pixels, digits, boxes = (part[: arguments.images] for part in planted_digits("test"))
    planted = normalised(pixels, reader)
    masks = cells_of_boxes(boxes, pixels.shape[-2:], reader.patch_embed.grid_size)
    found = localise(reader, planted, digits, masks)
    with torch.no_grad():
        accuracies = [(m(x).argmax(dim=1) == y).double().mean().item() for m, x, y in
                      ((model, images, labels), (reader, planted, digits))]  # fmt: skip

    text = "\n\n".join(
        [
            "# What maps are worth",
            "Made by `{command}` on {machine}, {date}.".format(**made),
            f"## {len(images)} photographs",
            f"{100 * accuracies[0]:.1f} % classified rightly. Scored in {seconds:.0f} s; rollout takes {cost:.2f} "
            f"times a plain forward pass of {BATCH} images. Means with 95 % intervals.",
            table_of(scores, ["drop", "fill", "SaCo", "positive", "negative", "Gini", "against random", "ms", "MB"]),
            f"Recommended: {scores.recommended('drop')}.",
            f"## Uniform attention in its place\n\n{uniform}",
            f"## {len(planted)} planted digits",
            f"{100 * accuracies[1]:.1f} % classified rightly; the class asked about is the true one. Means with 95 % "
            "intervals.",
            table_of(found, ["hits", "energy", "IoU"]),
            f"Recommended: {found.recommended('hits')}.",
            f"## {len(tiled)} mosaics of four photographs",
            "Each is halved in size, and the class asked about is that of one: a quarter of the mosaic is inside.",
            table_of(tiles, ["hits", "energy", "IoU"]),
        ]
    )
    print(text)
    (arguments.output / "explanations.md").write_text(text + "\n")
    result: dict[str, Any] = {"made": made, "seconds": seconds, "rollout_cost": cost}
    result |= {"accuracies": accuracies, "photographs": scores.rows, "uniform": uniform.rows, "planted": found.rows}
    result["mosaics"] = tiles.rows
    (arguments.output / "explanations.json").write_text(json.dumps(result, indent=1) + "\n")
    draw_scores(scores, "drop", arguments.output / "explanations_drop.png")
    draw_scores(found, "hits", arguments.output / "explanations_hits.png")


if __name__ == "__main__":
    main()
