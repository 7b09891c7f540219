"""Evaluation of maps: on photographs by removing patches, on planted digits and mosaics by a known answer.

Scores every method of ``vit.explain`` over CIFAR-10 images with a checkpoint of ``configs/cifar10_quick.yaml``,
replaces attention by uniform attention, compares methods on planted digits with a checkpoint of
``configs/planted_digits.yaml`` and on mosaics of the photographs, and times rollout against the plain forward pass.
Writes explanations.md, explanations.json and two plots.

    python benchmarks/explanations.py --photos data/cifar10-jpeg/test --checkpoint RUN/checkpoints/last.ckpt
        --planted RUN/checkpoints/last.ckpt [--images 500] [--output benchmarks/results]
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from records import command_line, made_at, origin, write_results
from side_by_side import interleaved
from torch import Tensor

import vit
from vit.data.files import decode, find_files
from vit.data.planted import planted_digits
from vit.explain import Scores, explain, localise, score
from vit.explain.evaluation.ground_truth import cells_of_boxes, cells_of_quadrants, mosaics
from vit.explain.evaluation.sanity import uniform_attention
from vit.explain.evaluation.table import Interval, Table
from vit.explain.figures import draw_scores
from vit.markdown import markdown_table

BATCH = 100
COLUMNS = ["drop", "fill", "SaCo", "positive", "negative", "Gini", "against random", "ms", "MB"]
OF_PLACES = ["hits", "energy", "IoU"]
ROUNDS = 9


def normalised(pixels: Tensor, model: vit.VisionTransformer) -> Tensor:
    """Normalise images, uint8 (B, C, H, W), as the model expects them."""
    mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
    return (pixels / 255 - mean) / std


def photographs(folder: Path, count: int, model: vit.VisionTransformer) -> tuple[Tensor, Tensor]:
    """Return a random sample of the images in class folders, the same in each run, and their labels."""
    files = find_files(folder)
    chosen = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:count].tolist()
    names = model.pretrained_cfg["class_names"]
    embed = model.patch_embed
    pixels = torch.stack([decode(files[i], embed.image_size, embed.in_channels) for i in chosen])
    return normalised(pixels, model), torch.tensor([names.index(files[i].parent.name) for i in chosen])


def rollout_cost(model: vit.VisionTransformer, images: Tensor) -> float:
    """Return the time of a batch's rollout over that of its forward pass, the median of interleaved rounds."""

    @torch.no_grad()
    def plain() -> None:
        model(images)

    calls = {"plain": plain, "rollout": lambda: explain(model, images, "rollout")}
    times = interleaved(calls, ROUNDS, 1, images.device)
    return statistics.median(rollout / plain for rollout, plain in zip(times["rollout"], times["plain"], strict=True))


def measure(photos: Path, checkpoint: Path, of_planted: Path, count: int) -> dict[str, Any]:
    """Score all methods on photographs, planted digits and mosaics, and return the numbers as JSON holds them."""
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
    found = localise(reader, planted, digits, masks)
    return {
        "seconds": seconds,
        "rollout_cost": rollout_cost(model, images[:BATCH]),
        "accuracies": [accuracy(model, images, labels), accuracy(reader, planted, digits)],
        "images": [len(images), len(planted), len(tiled)],
        "recommended": {"photographs": scores.recommended("drop"), "planted": found.recommended("hits")},
        "photographs": scores.rows,
        "uniform": uniform_attention(model, images, labels).rows,
        "planted": found.rows,
        "mosaics": localise(model, tiled, labels, cells_of_quadrants(cells, model.patch_embed.grid_size)).rows,
    }


@torch.no_grad()
def accuracy(model: vit.VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """Return the share of the images that are classified correctly."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()


def scores_of(rows: list[dict[str, Any]], images: int) -> Scores:
    """Return a table of scores from its rows in JSON."""
    intervals = [
        {name: Interval(*value) if isinstance(value, list | tuple) else value for name, value in row.items()}
        for row in rows
    ]
    return Scores(intervals, f"{images} images; mean (95 % interval)")


def table_of(scores: Scores, columns: list[str]) -> str:
    """Return some columns as Markdown, sorted by the first, the highest value on top."""
    rows = []
    for row in sorted(scores.rows, key=lambda row: -row[columns[0]].mean):
        cells = {name: f"{row[name]:.2g}" if isinstance(row[name], float) else str(row[name]) for name in columns}
        rows.append({"method": row["method"]} | cells)
    return markdown_table(rows, right=[name for name in columns if name != "against random"])


def recommended(methods: list[str]) -> str:
    """Return a line with the methods that tie at the top, above every control."""
    return f"Recommended: {', '.join(methods) or 'none'}."


def report(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    of_photographs, of_planted = (f"{100 * share:.1f} % classified correctly" for share in result["accuracies"])
    photographs, planted, tiled = result["images"]
    note = f"{photographs} images; layers and heads are counted from 0"
    return "\n\n".join(
        [
            "# Evaluation of maps",
            made_at(result["made"]),
            f"## {photographs} photographs",
            f"{of_photographs}. Scored in {result['seconds']:.0f} s; rollout takes {result['rollout_cost']:.2f} times "
            f"a plain forward pass of {BATCH} images. Means with 95 % intervals.",
            table_of(scores_of(result["photographs"], photographs), COLUMNS),
            recommended(result["recommended"]["photographs"]),
            f"## Uniform attention in place of the model's\n\n{Table(result['uniform'], note)}",
            f"## {planted} planted digits",
            f"{of_planted}; each map is that of the true class. Means with 95 % intervals.",
            table_of(scores_of(result["planted"], planted), OF_PLACES),
            recommended(result["recommended"]["planted"]),
            f"## {tiled} mosaics of four photographs",
            "The photographs are halved in size, and each map is that of one photograph's class: a quarter of the "
            "mosaic is inside.",
            table_of(scores_of(result["mosaics"], tiled), OF_PLACES) + "\n",
        ]
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the plots beside the file of results."""
    photographs, planted, _ = result["images"]
    draw_scores(scores_of(result["photographs"], photographs), "drop", path.with_name("explanations_drop.png"))
    draw_scores(scores_of(result["planted"], planted), "hits", path.with_name("explanations_hits.png"))


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="folder with a folder of images for each class")
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint of a model trained on such images")
    parser.add_argument("--planted", type=Path, required=True, help="checkpoint of configs/planted_digits.yaml")
    parser.add_argument("--images", type=int, default=500, help="photographs, and planted digits (default: 500)")
    options = parser.parse_args(arguments)
    made = origin()
    result = {"made": made} | measure(options.photos, options.checkpoint, options.planted, options.images)
    path = options.output / "explanations.json"
    write_results(path, result, report)
    draw(result, path)
    print(report(result))


if __name__ == "__main__":
    main()
