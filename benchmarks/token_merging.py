"""Accuracy and time of the packaged model as it merges tokens, without further training.

``vit.TokenMerging`` merges r patches in each block of ``vit.load("cifar10")``. Accuracy is that of test images, the
share of equal answers is that of the predictions of the model itself, and time is the median of rounds in which all r
take turns, of a batch without gradients.

    python benchmarks/token_merging.py --data data/cifar10-jpeg [--images 5000] [--rounds 15]
        [--output benchmarks/results]
"""

import statistics
from pathlib import Path
from typing import Any

import torch
from explanations import photographs
from records import command_line, made_at, origin, write_results
from side_by_side import interleaved
from torch import Tensor

import vit
from vit.support.markdown import markdown_table

MERGED = (0, 4, 8, 16, 24, 32, 40)  # patches in each of 6 blocks, of 256
BATCH = 64


@torch.inference_mode()
def classes(model: torch.nn.Module, images: Tensor) -> Tensor:
    """Return the predicted class of each image."""
    return torch.cat([model(batch).argmax(dim=1) for batch in images.split(BATCH)])


def left_in_last_block(r: int, model: vit.VisionTransformer) -> int:
    """Return the number of patches that the last block attends to."""
    left = model.patch_embed.num_patches
    for _ in model.blocks[:-1]:
        left -= min(r, left // 2)
    return left


def measure(images: Tensor, labels: Tensor, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each number of merged patches; the first one merges none."""
    model = vit.load("cifar10")
    merging = {str(r): vit.TokenMerging(model, r) for r in MERGED}
    batch, own = images[:BATCH], classes(model, images)

    @torch.inference_mode()
    def run(name: str) -> None:
        merging[name](batch)

    calls = {name: lambda name=name: run(name) for name in merging}
    seconds = {
        name: statistics.median(times) for name, times in interleaved(calls, rounds, 2, torch.device("cpu")).items()
    }
    rows = []
    for name, merged in merging.items():
        found = classes(merged, images)
        rows.append(
            {
                "r": int(name),
                "left": left_in_last_block(int(name), model),
                "accuracy": (found == labels).double().mean().item(),
                "same": (found == own).double().mean().item(),
                "seconds": seconds[name],
            }
        )
    return rows


def table(results: dict[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    none = results["rows"][0]["seconds"]
    rows = [
        {
            "patches merged in a block": str(row["r"]),
            "left in the last block": str(row["left"]),
            "test accuracy": f"{100 * row['accuracy']:.2f} %",
            "agreement": f"{100 * row['same']:.1f} %",
            "images per second": f"{BATCH / row['seconds']:.0f}",
            "time": f"{row['seconds'] / none:.2f}",
        }
        for row in results["rows"]
    ]
    return markdown_table(rows, right={*rows[0]})


def report(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    head = f"# Token merging\n\nThe packaged model on {results['images']:,} test images; time of {BATCH} images."
    return f"{head}\n\n{table(results)}\n\n{made_at(results['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with test/, class folders of images in it")
    parser.add_argument("--images", type=int, default=5_000, help="test images, a random sample of them")
    parser.add_argument("--rounds", type=int, default=15, help="rounds in which all numbers of patches take turns")
    options = parser.parse_args(arguments)
    images, labels = photographs(options.data / "test", options.images, vit.load("cifar10"))
    results = {"made": origin(), "images": len(images), "rows": measure(images, labels, options.rounds)}
    path = options.output / "token_merging.json"
    write_results(path, results, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
