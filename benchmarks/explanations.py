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
from side_by_side import interleaved
from torch import Tensor

import vit
from vit.data.files import decode, find_files
from vit.data.planted import planted_digits
from vit.explain import Scores, explain, localise, score
from vit.explain.evaluation.ground_truth import cells_of_boxes, cells_of_quadrants, mosaics
from vit.explain.evaluation.sanity import uniform_attention
from vit.explain.figures import draw_scores

BATCH = 100
COLUMNS = ["drop", "fill", "SaCo", "positive", "negative", "Gini", "against random", "ms", "MB"]
TABLES = ("photographs", "uniform", "planted", "mosaics")
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

    @torch.no_grad()
    def plain() -> None:
        model(images)

    calls = {"plain": plain, "rollout": lambda: explain(model, images, "rollout")}
    times = interleaved(calls, ROUNDS, 1, images.device)
    return statistics.median(rollout / plain for rollout, plain in zip(times["rollout"], times["plain"], strict=True))


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
    made, result = origin(), measure(arguments.photos, arguments.checkpoint, arguments.planted, arguments.images)
    text = report(made, result)
    print(text)
    (arguments.output / "explanations.md").write_text(text + "\n")
    rows = {name: part.rows if name in TABLES else part for name, part in result.items()}
    (arguments.output / "explanations.json").write_text(json.dumps({"made": made} | rows, indent=1) + "\n")
    draw_scores(result["photographs"], "drop", arguments.output / "explanations_drop.png")
    draw_scores(result["planted"], "hits", arguments.output / "explanations_hits.png")


def measure(photos: Path, checkpoint: Path, of_planted: Path, count: int) -> dict[str, Any]:
    """Scores of all methods on photographs, planted digits and mosaics, and what belongs to them."""
    model = vit.load(checkpoint)
    images, labels = photographs(photos, count, model)
    start = time.perf_counter()
    scores = score(model, images.split(BATCH))
    seconds = time.perf_counter() - start
    tiled, cells, _ = mosaics(images, labels, torch.Generator().manual_seed(0))

    reader = vit.load(of_planted)
    pixels, digits, boxes = (part[:count] for part in planted_digits("test"))
    planted = normalised(pixels, reader)
    masks = cells_of_boxes(boxes, pixels.shape[-2:], reader.patch_embed.grid_size)
    return {
        "seconds": seconds,
        "rollout_cost": rollout_cost(model, images[:BATCH]),
        "accuracies": [accuracy(model, images, labels), accuracy(reader, planted, digits)],
        "images": [len(images), len(planted), len(tiled)],
        "photographs": scores,
        "uniform": uniform_attention(model, images, labels),
        "planted": localise(reader, planted, digits, masks),
        "mosaics": localise(model, tiled, labels, cells_of_quadrants(cells, model.patch_embed.grid_size)),
    }


@torch.no_grad()
def accuracy(model: vit.VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """Share of the images that are classified rightly."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()


def report(made: dict[str, str], result: dict[str, Any]) -> str:
    """What came out, as Markdown."""
    of_photographs, of_planted = (f"{100 * share:.1f} % classified rightly" for share in result["accuracies"])
    photographs, planted, tiled = result["images"]
    return "\n\n".join(
        [
            "# What maps are worth",
            "Made by `{command}` on {machine}, {date}.".format(**made),
            f"## {photographs} photographs",
            f"{of_photographs}. Scored in {result['seconds']:.0f} s; rollout takes {result['rollout_cost']:.2f} times "
            f"a plain forward pass of {BATCH} images. Means with 95 % intervals.",
            table_of(result["photographs"], COLUMNS),
            f"Recommended: {result['photographs'].recommended('drop')}.",
            f"## Uniform attention in its place\n\n{result['uniform']}",
            f"## {planted} planted digits",
            f"{of_planted}; the class asked about is the true one. Means with 95 % intervals.",
            table_of(result["planted"], ["hits", "energy", "IoU"]),
            f"Recommended: {result['planted'].recommended('hits')}.",
            f"## {tiled} mosaics of four photographs",
            "Each is halved in size, and the class asked about is that of one: a quarter of the mosaic is inside.",
            table_of(result["mosaics"], ["hits", "energy", "IoU"]),
        ]
    )


if __name__ == "__main__":
    main()
