"""Time of a batch of images of many sizes: packed into one sequence, padded to the longest, by size, one by one.

64 images have sides drawn from a range (seed 0); a model of 192 channels, 6 blocks and patches of 4 pixels classifies
them without gradients. The ways take turns; a number is the median of the rounds.

    python benchmarks/mixed_sizes.py [--rounds 9] [--output benchmarks/results]
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from records import command_line, made_at, origin, write_results
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import vit
from vit.attention import padding_mask
from vit.support.markdown import markdown_table

PATCH, IMAGES, SEED = 4, 64, 0
RANGES = {"16 to 48 pixels": (4, 13), "24 to 96 pixels": (6, 25)}  # patches a side


def packed(model: vit.VisionTransformer, images: Sequence[Tensor]) -> Tensor:
    """Classify all images as one sequence without padding."""
    return model.forward_mixed(images)


def padded(model: vit.VisionTransformer, images: Sequence[Tensor]) -> Tensor:
    """Classify all images in one batch, whose shorter sequences are padded and masked."""
    embedded = [model.embed(image[None])[0] for image in images]
    lengths = [len(tokens) for tokens in embedded]
    tokens = pad_sequence(embedded, batch_first=True)
    mask = padding_mask(torch.tensor(lengths), tokens.shape[1])
    for block in model.blocks:
        tokens = block(tokens, mask=mask)
    states = zip(model.norm(tokens), lengths, strict=True)
    return torch.cat([model.forward_head(state[None, :length]) for state, length in states])


def by_size(model: vit.VisionTransformer, images: Sequence[Tensor]) -> Tensor:
    """Classify the images of each size in a batch of their own."""
    sizes = [tuple(image.shape) for image in images]
    logits = torch.empty(len(images), model.num_classes)
    for size in dict.fromkeys(sizes):
        chosen = [i for i, each in enumerate(sizes) if each == size]
        logits[chosen] = model(torch.stack([images[i] for i in chosen]))
    return logits


def one_by_one(model: vit.VisionTransformer, images: Sequence[Tensor]) -> Tensor:
    """Classify each image by itself."""
    return torch.cat([model(image[None]) for image in images])


WAYS: dict[str, Callable[[vit.VisionTransformer, Sequence[Tensor]], Tensor]] = {
    "packed (`forward_mixed`)": packed,
    "padded and masked": padded,
    "a batch for each size": by_size,
    "one by one": one_by_one,
}


def draw_images(fewest: int, most: int) -> list[Tensor]:
    """Return images whose sides are random numbers of patches, from the fewest to below the most."""
    generator = torch.Generator().manual_seed(SEED)
    sides = torch.randint(fewest, most, (IMAGES, 2), generator=generator) * PATCH
    return [torch.randn(3, *side, generator=generator) for side in sides.tolist()]


@torch.no_grad()
def measure(images: Sequence[Tensor], rounds: int) -> dict[str, float]:
    """Return the median of the seconds of each way, after a check that all give the same logits."""
    model = vit.VisionTransformer(image_size=32, patch_size=PATCH, embed_dim=192, depth=6, num_heads=6).eval()
    expected = one_by_one(model, images)
    for way in WAYS.values():
        torch.testing.assert_close(way(model, images), expected, rtol=1e-4, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            start = time.perf_counter()
            way(model, images)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def table(results: dict[str, Any]) -> str:
    """Return the times as a Markdown table, as multiples of that of the packed batch."""
    rows = []
    for name, cell in results["ranges"].items():
        seconds = cell["seconds"]
        least = seconds["packed (`forward_mixed`)"]
        row = {"sides": name, "different sizes": str(cell["sizes"])}
        row |= {way: f"{value / least:.2f}" for way, value in seconds.items()}
        rows.append(row | {"packed, images/s": f"{IMAGES / least:.0f}"})
    return markdown_table(rows)


def report(results: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    head = f"# Images of many sizes in one batch\n\n{IMAGES} images; time as a multiple of that of the packed batch."
    return f"{head}\n\n{table(results)}\n\n{made_at(results['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds in which the ways take turns")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"made": origin(), "rounds": options.rounds, "ranges": {}}
    for name, (fewest, most) in RANGES.items():
        images = draw_images(fewest, most)
        sizes = len({tuple(image.shape) for image in images})
        results["ranges"][name] = {"sizes": sizes, "seconds": measure(images, options.rounds)}
    path = options.output / "mixed_sizes.json"
    write_results(path, results, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
