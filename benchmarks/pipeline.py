"""From images to normalised, augmented batches: images per second of our data path and of other libraries'.

From images in memory, ours gathers and augments sixteen batches at a time. torchvision's usual path transforms image by
image: a dataset that turns a row of an array into a PIL image, as torchvision.datasets.CIFAR10 does, and a DataLoader
with and without worker processes; a second baseline has its v2 transforms on tensors. The images are noise in the shape
of CIFAR-10.

From JPEG files, worker processes decode. Ours scale each photograph to 256 pixels, and a batch is cropped and mirrored
as a whole. torchvision's and timm's crop and mirror in the workers. The photographs are parts of two pictures, enlarged
and with noise.

All paths take turns in one process. A cell is a source or an augmentation, and a device; it is written to pipeline.json
and pipeline.md as soon as it is measured, in place of an older one.

    python benchmarks/pipeline.py [--sources memory] [--images 50000] [--photographs 200] [--rounds 15]
        [--output benchmarks/results]
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import timm.data
import torch
from einops import rearrange
from PIL import Image
from records import command_line, comparison, provenance, write_cell
from side_by_side import DEVICE, compared, interleaved, repeated, spread
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
from torchvision.transforms import v2

from vit.data.augment import Augment
from vit.data.cifar import CIFAR10
from vit.data.image_files import ImageFiles, stored_size
from vit.data.loader import BatchLoader, MemoryLoader, StreamLoader
from vit.data.sampler import BatchSampler

BATCH = 128
BATCHES = 40  # of one timed call
LONGER = 10  # times as many batches of ours, which would otherwise take only 25 ms
PAUSE = 0.5  # seconds before each turn, in which the workers of the path before fill their queues and stop
PREFETCH = 2  # batches that each worker prepares ahead, PyTorch's default
POLICIES = {"crop and flip": "none", "crop, flip and RandAugment": "randaugment"}

FROM_FILES = "photographs from files"
PHOTO_BATCH = 32
PHOTO_BATCHES = 8
PHOTO_PAUSE = 1.5
PHOTO_WORKERS = 2
SHORTEST, LONGEST = 500, 2000  # sides of a photograph
LINKS = 10  # names of each photograph, for epochs that are longer than their first batches
SIZE, CROP_RATIO, SCALE = (224, 224), 0.875, (0.08, 1.0)
MEAN, STD = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD

REPORT = """# From images to augmented, normalised batches

In memory: 32x32 images in batches of 128, shifted by up to 4 pixels over a reflected border and mirrored; RandAugment
with two operations of magnitude 9. Our path augments sixteen batches at a time on the device, torchvision's image by
image, as PIL images or (v2) as tensors.

From files: JPEG photographs with sides of 500 to 2,000 pixels, in batches of 32, as random resized crops (8 to 100 % of
the area) of 224 pixels, mirrored. Our workers scale a photograph to 256 pixels, from a reduced scale of the JPEG where
it is more than twice as large, and each batch is cropped as a whole; in torchvision and timm, the workers crop.

All take turns in one process, and numbers are medians over the rounds, with quartiles. Starting the workers is not
timed, and batches that they prepared during the turns of others are not counted. "Against the best other": speed as a
multiple of that of the fastest path of another library in the same round.
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


def torchvision_batches(dataset: Dataset, batch_size: int, workers: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches on the device, epoch after epoch; like ours, without the incomplete last batch of each."""
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
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


def timm_batches(folder: Path, workers: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches of photographs, random resized crops and mirrored, epoch after epoch."""
    loader = timm.data.create_loader(
        timm.data.create_dataset("", root=str(folder)),
        input_size=(3, *SIZE),
        batch_size=PHOTO_BATCH,
        is_training=True,
        scale=SCALE,
        color_jitter=0.0,
        interpolation="bilinear",  # as in torchvision and here
        num_workers=workers,
        device=device,
        pin_memory=device.type == "cuda",
    )
    while True:
        for images, _ in loader:
            yield images


def our_batches(loader: BatchLoader, mean: Sequence[float], std: Sequence[float]) -> Iterator[Tensor]:
    """Yield batches as the model in a ``vit.training.ViTClassifier`` gets them, epoch after epoch."""
    mean, std = (rearrange(torch.tensor(x, device=loader.device), "c -> c 1 1") for x in (mean, std))
    for epoch in itertools.count():
        loader.begin_epoch(epoch)
        for batch, _ in loader:
            yield (batch - mean * 255).div_(std * 255)


def from_memory(images: Tensor, labels: Tensor, policy: str, device: torch.device) -> Iterator[Tensor]:
    """Yield our batches of images in memory."""
    sampler = BatchSampler(len(images), BATCH, shuffle=True)
    augment = Augment(CIFAR10.num_classes, crop_padding=4, flip=True, policy=policy)
    return our_batches(MemoryLoader(images, labels, sampler, augment, device), CIFAR10.mean, CIFAR10.std)


def from_files(folder: Path, workers: int, device: torch.device) -> Iterator[Tensor]:
    """Yield our batches of photographs, random resized crops and mirrored."""
    paths = sorted(folder.rglob("*.jpg"))
    files = ImageFiles(paths, [0] * len(paths), stored_size(SIZE, CROP_RATIO), in_channels=3)
    augment = Augment(1, crop_scale=SCALE, crop_size=SIZE, flip=True)
    sampler = BatchSampler(len(paths), PHOTO_BATCH, shuffle=True)
    return our_batches(StreamLoader(files, sampler, augment, device, workers), MEAN, STD)


def photograph_transform(tensors: bool) -> Callable[[Any], Tensor]:
    """Return the usual transforms of torchvision's v2 for photographs, on tensors or on PIL images."""
    steps = [v2.RandomResizedCrop(SIZE, scale=SCALE), v2.RandomHorizontalFlip()]
    steps = [v2.ToImage(), *steps] if tensors else [*steps, v2.ToImage()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def save_photographs(folder: Path, count: int) -> None:
    """Save JPEG photographs of many sizes in two class folders: parts of two pictures, enlarged and with noise."""
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(picture) for picture in load_sample_images().images]
    for number in range(count):
        picture = pictures[number % 2]
        width, height = (int(side) for side in rng.integers(SHORTEST, LONGEST + 1, size=2))
        left, top = rng.integers(picture.width // 2), rng.integers(picture.height // 2)
        part = picture.crop((left, top, left + picture.width // 2, top + picture.height // 2))
        pixels = part.resize((width, height), Image.Resampling.BICUBIC) + rng.normal(0, 5, (height, width, 3))
        path = folder / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        for link in range(1, LINKS):
            path.with_stem(f"{number}_{link}").hardlink_to(path)


def measure(
    images: Tensor, policy: str, rounds: int, batches: int, worker_counts: Sequence[int], device: torch.device
) -> dict[str, Any]:
    """Return one cell: images per second of every path, from uint8 images (N, 3, 32, 32) on."""
    labels = torch.randint(CIFAR10.num_classes, (len(images),))
    rows = rearrange(images, "n c h w -> n h w c").contiguous().numpy()
    sources = {
        "PIL images": ImagesInMemory(rows, labels.tolist(), pil_transform(policy)),
        "v2 on tensors": ImagesInMemory(images, labels.tolist(), tensor_transform(policy)),
    }
    streams, ahead = {"ours": from_memory(images, labels, policy, device)}, {"ours": 0}
    for (kind, dataset), workers in itertools.product(sources.items(), worker_counts):
        name = f"torchvision, {kind}, {workers} workers"
        streams[name] = torchvision_batches(dataset, BATCH, workers, device)
        ahead[name] = PREFETCH * workers
    rows = _rows(streams, ahead, rounds, {"ours": LONGER * batches}, batches, BATCH, PAUSE, device)
    return {"images": len(images), "rounds": rounds, "batches": batches, "rows": rows}


def measure_files(count: int, rounds: int, batches: int, device: torch.device) -> dict[str, Any]:
    """Return one cell: images per second of every path, from JPEG files on."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_photographs(folder, count)
        on_pil, on_tensors = (datasets.ImageFolder(folder, photograph_transform(tensors)) for tensors in (False, True))
        others = {
            "torchvision, PIL images": torchvision_batches(on_pil, PHOTO_BATCH, PHOTO_WORKERS, device),
            "torchvision, v2 on tensors": torchvision_batches(on_tensors, PHOTO_BATCH, PHOTO_WORKERS, device),
            "timm": timm_batches(folder, PHOTO_WORKERS, device),
        }
        streams = {"ours": from_files(folder, PHOTO_WORKERS, device)}
        streams |= {f"{name}, {PHOTO_WORKERS} workers": stream for name, stream in others.items()}
        ahead = dict.fromkeys(streams, PREFETCH * PHOTO_WORKERS)
        rows = _rows(streams, ahead, rounds, {}, batches, PHOTO_BATCH, PHOTO_PAUSE, device)
        for stream in streams.values():
            stream.close()  # ends the workers before their files are gone
    return {"images": count, "rounds": rounds, "batches": batches, "rows": rows}


def _rows(
    streams: dict[str, Iterator[Tensor]],
    ahead: dict[str, int],
    rounds: int,
    longer: dict[str, int],
    batches: int,
    batch_size: int,
    pause: float,
    device: torch.device,
) -> dict[str, dict[str, Any]]:
    """Return images per second of each path, and ours against the fastest other.

    Args:
        streams: Batches of each path by its name, of which one is "ours".
        ahead: Batches of each path that its workers prepare ahead.
        rounds: Timed calls of each path.
        longer: Batches of the calls of single paths.
        batches: Batches of all other calls.
        batch_size: Images of a batch.
        pause: Seconds before each call.
        device: The device of the batches.
    """

    def prepare(name: str) -> None:
        time.sleep(pause)
        for _ in range(ahead[name]):
            next(streams[name])

    calls = {name: repeated(partial(next, stream), longer.get(name, batches)) for name, stream in streams.items()}
    times = interleaved(calls, rounds, 1, device, prepare)
    per_call = {name: [s * batches / longer.get(name, batches) for s in seconds] for name, seconds in times.items()}
    return compared(per_call, batches * batch_size, streams.keys() - {"ours"})


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    return f"{cell['images']:,} images, {cell['rounds']} rounds of {cell['batches']} batches."


def _readable(path: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "path": path,
        "images per second": spread(row["images_per_second"], ",.0f"),
        "against the best other": spread(row["against_best_peer"], ".2f"),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--sources", nargs="+", choices=("memory", "files"), default=["memory"], help="of images (default: memory)"
    )
    parser.add_argument("--images", type=int, default=50_000, help="images in memory (default: 50,000)")
    parser.add_argument("--photographs", type=int, default=200, help="photographs in files (default: 200)")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each path (default: 15)")
    options = parser.parse_args(arguments)
    if options.images < BATCH:
        parser.error(f"--images ({options.images}) must be at least one batch ({BATCH})")
    if options.photographs * LINKS < PHOTO_BATCH:
        parser.error(f"--photographs ({options.photographs}) must be at least {-(-PHOTO_BATCH // LINKS)}")
    made = provenance()
    path = options.output / "pipeline.json"
    if "memory" in options.sources:
        images = torch.randint(256, (options.images, 3, 32, 32), dtype=torch.uint8)
        for name, policy in POLICIES.items():
            cell = measure(images, policy, options.rounds, BATCHES, (0, os.cpu_count() or 1), DEVICE)
            print(f"{name}: done", file=sys.stderr)
            write_cell(path, f"{name} {DEVICE.type}", made | cell, report)
    if "files" in options.sources:
        cell = measure_files(options.photographs, options.rounds, PHOTO_BATCHES, DEVICE)
        write_cell(path, f"{FROM_FILES} {DEVICE.type}", made | cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
