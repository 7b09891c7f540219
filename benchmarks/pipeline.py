"""From images in memory to normalised, augmented batches: images per second of our data path and of torchvision's.

Ours gathers and augments sixteen batches at a time. torchvision's usual path transforms image by image: a dataset that
turns a row of an array into a PIL image, as torchvision.datasets.CIFAR10 does, and a DataLoader with and without worker
processes; a second baseline has its v2 transforms on tensors. All take turns in one process, on noise in the shape of
CIFAR-10. A cell is an augmentation and a device; it is written to pipeline.json and pipeline.md as soon as it is
measured, in place of an older one.

    python benchmarks/pipeline.py [--images 50000] [--rounds 15] [--output benchmarks/results]
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from records import command_line, comparison, provenance, write_cell
from side_by_side import DEVICE, compared, interleaved, repeated, spread
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import v2

from vit.data.augment import Augment
from vit.data.cifar import CIFAR10
from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler

BATCH = 128
BATCHES = 40  # of one timed call
LONGER = 10  # times as many batches of ours, which would otherwise take only 25 ms
PAUSE = 0.5  # seconds before each turn, in which the workers of the path before fill their queues and stop
PREFETCH = 2  # batches that each worker prepares ahead, PyTorch's default
POLICIES = {"crop and flip": "none", "crop, flip and RandAugment": "randaugment"}

REPORT = """# From images in memory to augmented, normalised batches

32x32 images in batches of 128, shifted by up to 4 pixels over a reflected border and mirrored; RandAugment with two
operations of magnitude 9. Our path augments sixteen batches at a time on the device, torchvision's image by image, as
PIL images or (v2) as tensors. All take turns in one process, and numbers are medians over the rounds, with quartiles.
Starting the workers is not timed, and batches that they prepared during the turns of others are not counted. "Against
the best of torchvision": speed as a multiple of that of its fastest path in the same round.
"""


class ImagesInMemory(Dataset):
    """A dataset of images in memory that does what torchvision.datasets.CIFAR10 does, without its files.

    Args:
        images: An array or tensor of images.
        labels: Their classes.
        transform: Applied to each image.
    """

    def __init__(self, images: Any, labels: list[int], transform: Callable[[Any], Tensor]) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return a transformed image and its class."""
        return self.transform(self.images[index]), self.labels[index]


def pil_transform(policy: str) -> Callable[[Any], Tensor]:
    """Return the usual transforms of torchvision, from a row of the array on."""
    steps = [Image.fromarray, transforms.RandomCrop(32, padding=4, padding_mode="reflect")]
    steps += [transforms.RandomHorizontalFlip()]
    steps += [transforms.RandAugment(num_ops=2, magnitude=9)] if policy == "randaugment" else []
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(CIFAR10.mean, CIFAR10.std)])


def tensor_transform(policy: str) -> Callable[[Tensor], Tensor]:
    """Return the same transforms of torchvision's v2, on uint8 tensors."""
    steps = [v2.RandomCrop(32, padding=4, padding_mode="reflect"), v2.RandomHorizontalFlip()]
    steps += [v2.RandAugment(num_ops=2, magnitude=9)] if policy == "randaugment" else []
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR10.mean, CIFAR10.std)])


def torchvision_batches(dataset: Dataset, workers: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches on the device, epoch after epoch; like ours, without the incomplete last batch of each."""
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        prefetch_factor=PREFETCH if workers else None,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    while True:
        for images, _ in loader:
            yield images.to(device, non_blocking=True)


def our_batches(images: Tensor, labels: Tensor, policy: str, device: torch.device) -> Iterator[Tensor]:
    """Yield batches as the model in a ``vit.training.ViTClassifier`` gets them, epoch after epoch."""
    sampler = BatchSampler(len(images), BATCH, shuffle=True)
    augment = Augment(CIFAR10.num_classes, crop_padding=4, flip=True, policy=policy)
    loader = MemoryLoader(images, labels, sampler, augment, device)
    mean, std = (rearrange(torch.tensor(x, device=device), "c -> c 1 1") for x in (CIFAR10.mean, CIFAR10.std))
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for batch, _ in loader:
            yield (batch - mean * 255).div_(std * 255)


def measure(
    images: Tensor, policy: str, rounds: int, batches: int, worker_counts: Sequence[int], device: torch.device
) -> dict[str, Any]:
    """Return one cell: images per second of every path, from uint8 images (N, 3, 32, 32) on."""
    labels = torch.randint(CIFAR10.num_classes, (len(images),))
    rows = rearrange(images, "n c h w -> n h w c").contiguous().numpy()
    datasets = {
        "PIL images": ImagesInMemory(rows, labels.tolist(), pil_transform(policy)),
        "v2 on tensors": ImagesInMemory(images, labels.tolist(), tensor_transform(policy)),
    }
    streams, ahead = {"ours": our_batches(images, labels, policy, device)}, {"ours": 0}
    for (kind, dataset), workers in itertools.product(datasets.items(), worker_counts):
        name = f"torchvision, {kind}, {workers} workers"
        streams[name] = torchvision_batches(dataset, workers, device)
        ahead[name] = PREFETCH * workers

    def prepare(name: str) -> None:
        time.sleep(PAUSE)
        for _ in range(ahead[name]):
            next(streams[name])

    longer = {name: LONGER if name == "ours" else 1 for name in streams}
    calls = {name: repeated(partial(next, stream), batches * longer[name]) for name, stream in streams.items()}
    times = interleaved(calls, rounds, 1, device, prepare)
    times = {name: [second / longer[name] for second in seconds] for name, seconds in times.items()}
    return {
        "images": len(images),
        "rounds": rounds,
        "batches": batches,
        "rows": compared(times, batches * BATCH, streams.keys() - {"ours"}),
    }


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    return f"{cell['images']:,} images, {cell['rounds']} rounds of {cell['batches']} batches."


def _readable(path: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "path": path,
        "images per second": spread(row["images_per_second"], ",.0f"),
        "against the best of torchvision": spread(row["against_best_peer"], ".2f"),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--images", type=int, default=50_000, help="images in memory (default: 50,000)")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each path (default: 15)")
    options = parser.parse_args(arguments)
    if options.images < BATCH:
        parser.error(f"--images ({options.images}) must be at least one batch ({BATCH})")
    made = provenance()
    path = options.output / "pipeline.json"
    images = torch.randint(256, (options.images, 3, 32, 32), dtype=torch.uint8)
    for name, policy in POLICIES.items():
        cell = measure(images, policy, options.rounds, BATCHES, (0, os.cpu_count() or 1), DEVICE)
        print(f"{name}: done", file=sys.stderr)
        write_cell(path, f"{name} {DEVICE.type}", made | cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
