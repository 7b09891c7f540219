"""Tar shards: images per second, what an epoch has of each image, and the time and memory of the start.

The first cell compares our data path from shards and from a folder with webdataset and litdata alone, and with the
usual loop over a DataLoader and torchvision's folder. All decode JPEG files of 256 pixels by Pillow, scale them to 224,
and take turns. The second counts, over two processes of two workers each, the images that an epoch serves twice or not
at all, and how often two images in a row are of one shard: a random order over the whole set does that as often as
shards are large. The third starts on 1,281,167 images of 8 x 8 pixels in 1,000 classes, on a tenth of them and on a
hundredth.

webdataset and litdata are needed: pip install webdataset litdata.

    python benchmarks/shards.py [--cells speed epoch start] [--rounds 9] [--start 1281167]
        [--tiny FOLDER] [--output benchmarks/results]
"""

import itertools
import json
import shutil
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from records import command_line, comparison, provenance, write_cell
from side_by_side import compared, interleaved, repeated, spread
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets

from vit.data.image_files import ImageFiles
from vit.data.loader import StreamLoader
from vit.data.sampler import BatchSampler
from vit.data.shard_files import INDEX_SUFFIX, Members, describe_shard, digest_of, read_index, write_shard
from vit.data.shards import MANIFEST
from vit.support.plotting import BLUE, ORANGE, plot_style

CPU = torch.device("cpu")
IMAGES, SHARDS, SIDE, SIZE = 1200, 6, 256, (224, 224)
BATCH, BATCHES, WORKERS, PREFETCH = 32, 30, 2, 2
PAUSE = 1.0  # seconds before each turn, in which the workers of the path before fill their queues and stop
BUFFER = 400  # images of webdataset's shuffle, a third of all
PROCESSES = 2
CLASSES, PER_SHARD = 1000, 10_000
SHARES_STARTED = 100, 10, 1  # of all images

REPORT = """# Tar shards

Speed: JPEG files of 256 pixels, scaled to 224, in batches of 32 by two workers, in random order, without augmentation.
Medians over the rounds, with quartiles; batches that workers prepared during the turns of others are not counted.
"Against the best other": speed as a multiple of that of the fastest path of another library in the same round.

Epoch: two processes of two workers each, seven shards. A random order over all images takes two in a row from one shard
with the share in the last column of the first row.

Start: to the first batch, with the imports, in a process of its own, whose peak memory is given. On a machine with
other work, the seconds of the processor tell more than those of the clock.
"""

Batches = Iterator[tuple[Tensor, Any]]


def save_images(folder: Path, count: int) -> list[Path]:
    """Save parts of two pictures with noise as JPEG files, in two class folders."""
    rng = np.random.default_rng(0)
    pictures = load_sample_images().images
    paths = []
    for number in range(count):
        picture = pictures[number % 2]
        top, left = rng.integers(picture.shape[0] - SIDE), rng.integers(picture.shape[1] - SIDE)
        pixels = picture[top : top + SIDE, left : left + SIDE] + rng.normal(0, 5, (SIDE, SIDE, 3))
        path = folder / f"{number % 2}/{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        paths.append(path)
    return paths


def save_shards(folder: Path, paths: list[Path], count: int) -> list[Path]:
    """Write images as shards, whose class is the number of the image."""
    folder.mkdir()
    shards = [folder / f"train-{number:06}.tar" for number in range(count)]
    for number, shard in enumerate(shards):
        write_shard(shard, [(f"{index:06}", paths[index], index) for index in range(number, len(paths), count)])
    return shards


def save_chunks(folder: Path, paths: list[Path], count: int) -> None:
    """Write images in the format of litdata, in about as many chunks as there are shards."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=-(-len(paths) // count))
    for number, path in enumerate(paths):
        writer[number] = (path.read_bytes(), number)
    writer.done()
    writer.merge()


def read(content: BytesIO | Path | bytes) -> Tensor:
    """Return an image (3, H, W) as the usual loop decodes it: by Pillow, image by image."""
    with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as file:
        image = ImageOps.fit(file.convert("RGB"), SIZE[::-1], Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def ours(paths: list[Path] | Members, numbers: Any, epoch: int, rank: int, processes: int) -> Batches:
    """Return our batches of one epoch, from shards or from a folder."""
    sampler = BatchSampler(len(paths), BATCH, shuffle=True, rank=rank, world_size=processes)
    loader = StreamLoader(ImageFiles(paths, numbers, SIZE, 3), sampler, None, CPU, WORKERS)
    loader.begin_epoch(epoch)
    return iter(loader)


def members_of(shards: list[Path]) -> tuple[Members, np.ndarray]:
    """Return the images of shards and their classes."""
    indices = [*map(read_index, shards)]
    numbers = np.repeat(np.arange(len(shards), dtype=np.int32), [*map(len, indices)])
    index = np.concatenate(indices)
    return Members(shards, numbers, index), index["class"].astype(np.int64)


def from_webdataset(shards: list[Path], epoch: int, rank: int, processes: int) -> Batches:
    """Return the batches of webdataset: shards in random order, and a buffer."""
    import webdataset

    def of_process(urls: Iterator[Any]) -> Iterator[Any]:
        yield from itertools.islice(urls, rank, None, processes)

    dataset = webdataset.WebDataset(
        [*map(str, shards)], shardshuffle=len(shards), detshuffle=True, seed=epoch, nodesplitter=of_process
    )
    dataset = dataset.shuffle(BUFFER).to_tuple("jpg", "cls").map_tuple(read, int).batched(BATCH, partial=False)
    return iter(DataLoader(dataset, batch_size=None, num_workers=WORKERS, prefetch_factor=PREFETCH))


def from_litdata(folder: Path, epoch: int, rank: int, processes: int) -> Batches:
    """Return the batches of litdata."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.utilities.env import _DistributedEnv

    class Chunks(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[Tensor, int]:
            content, number = super().__getitem__(index)
            return read(bytes(content)), number

    dataset = Chunks(str(folder), shuffle=True, drop_last=False, seed=epoch)
    dataset.distributed_env = _DistributedEnv(processes, rank, 1)
    return iter(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, prefetch_factor=PREFETCH))


def from_folder(folder: Path, epoch: int, rank: int, processes: int) -> Batches:
    """Return the batches of the usual loop over a DataLoader, as a DistributedSampler shares them."""
    dataset = datasets.ImageFolder(folder, loader=read)
    sampler = torch.utils.data.DistributedSampler(dataset, processes, rank, seed=epoch)
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS, drop_last=True))


def endless(start: Callable[[int], Batches]) -> Batches:
    """Yield the batches of epoch after epoch."""
    for epoch in itertools.count():
        yield from start(epoch)


def measure_speed(rounds: int) -> dict[str, Any]:
    """Return images per second of each path."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = save_images(folder / "files", IMAGES)
        shards = save_shards(folder / "shards", paths, SHARDS)
        save_chunks(folder / "chunks", paths, SHARDS)
        alone = {"rank": 0, "processes": 1}
        members, numbers = members_of(shards)
        streams = {
            "ours, shards": endless(lambda epoch: ours(members, numbers, epoch, **alone)),
            "ours, folder": endless(lambda epoch: ours(paths, [*range(IMAGES)], epoch, **alone)),
            "DataLoader, folder": endless(lambda epoch: from_folder(folder / "files", epoch, **alone)),
            "webdataset": endless(lambda epoch: from_webdataset(shards, epoch, **alone)),
            "litdata": endless(lambda epoch: from_litdata(folder / "chunks", epoch, **alone)),
        }

        def prepare(name: str) -> None:
            time.sleep(PAUSE)
            for _ in range(PREFETCH * WORKERS):
                next(streams[name])

        calls = {name: repeated(partial(next, stream), BATCHES) for name, stream in streams.items()}
        times = interleaved(calls, rounds, 1, CPU, prepare)
        rows = compared(times, BATCHES * BATCH, [name for name in streams if not name.startswith("ours")])
        for stream in streams.values():
            stream.close()
    return {"images": IMAGES, "rounds": rounds, "batches": BATCHES, "rows": rows}


def measure_epoch(count: int = 597, shard_count: int = 7) -> dict[str, Any]:
    """Return how an epoch of each path serves the images."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = save_images(folder / "files", count)
        shards = save_shards(folder / "shards", paths, shard_count)
        save_chunks(folder / "chunks", paths, shard_count)
        members, numbers = members_of(shards)
        starts = {
            "ours, shards": partial(ours, members, numbers),
            "webdataset": partial(from_webdataset, shards),
            "litdata": partial(from_litdata, folder / "chunks"),
        }
        rows = {}
        for name, start in starts.items():
            served = [
                [int(number) for _, numbers in start(epoch=0, rank=rank, processes=PROCESSES) for number in numbers]
                for rank in range(PROCESSES)
            ]
            counts = Counter(number for numbers in served for number in numbers)
            # litdata's chunks hold images in their order, our shards every seventh.
            chunk = -(-count // shard_count)
            of_shard = [n // chunk if name == "litdata" else n % shard_count for n in range(count)]
            pairs = [of_shard[a] == of_shard[b] for numbers in served for a, b in itertools.pairwise(numbers)]
            rows[name] = {
                "twice": sum(number > 1 for number in counts.values()),
                "never": count - len(counts),
                "batches": [len(numbers) / BATCH for numbers in served],
                "same_shard": sum(pairs) / len(pairs),
            }
    return {"images": count, "shards": shard_count, "rows": rows}


START = """
import resource, sys, time
start = time.perf_counter()
from vit.data import Shards
data = Shards(sys.argv[1], image_size=8, num_workers=2, batch_size=256, val_fraction=0.01, test_fraction=0.01)
data.setup("fit")
next(iter(data.train_dataloader()))
used = resource.getrusage(resource.RUSAGE_SELF)
print(f"\\n{time.perf_counter() - start} {used.ru_utime + used.ru_stime} {used.ru_maxrss / 2**20}")
"""


def save_tiny_images(shard: Path, first: int, count: int) -> dict[str, Any]:
    """Write a shard of images of 8 x 8 pixels, which differ in the bytes of their number, from a number on."""
    image, index_file = shard.with_name("tiny.ppm"), shard.with_name(shard.name + INDEX_SUFFIX)
    head = b"P6 8 8 255\n"
    image.write_bytes(head + bytes(8 * 8 * 3))
    if first == 0 or count < PER_SHARD:
        write_shard(shard, [(f"{number:08}", image, number % CLASSES) for number in range(count)])
    else:
        shutil.copy(shard.with_name("train-000000.tar"), shard)
        shutil.copy(shard.with_name("train-000000.tar" + INDEX_SUFFIX), index_file)
    content, index = np.fromfile(shard, dtype=np.uint8), np.load(index_file)
    for place in range(4):
        content[index["offset"] + len(head) + place] = np.arange(first, first + count) >> 8 * place & 255
    for row in index:
        image = content[row["offset"] :][: row["size"]]
        row["digest"], row["crc32"] = digest_of(image), zlib.crc32(image)
    content.tofile(shard)
    np.save(index_file, index)
    return describe_shard(shard)


def save_tiny_set(folder: Path, count: int) -> str:
    """Write shards of tiny images, unless they are there, and return their pattern."""
    names = [f"train-{number:06}.tar" for number in range(-(-count // PER_SHARD))]
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        entries = {
            name: save_tiny_images(folder / name, number * PER_SHARD, min(PER_SHARD, count - number * PER_SHARD))
            for number, name in enumerate(names)
        }
        manifest = {"source": "", "classes": [f"class {number}" for number in range(CLASSES)], "shards": entries}
        (folder / MANIFEST).write_text(json.dumps(manifest))
    return f"{folder}/train-{{000000..{len(names) - 1:06}}}.tar"


def start_once(pattern: str) -> dict[str, float]:
    """Return seconds and memory of a process until its first batch."""
    printed = subprocess.run([sys.executable, "-c", START, pattern], capture_output=True, text=True, check=True).stdout
    numbers = map(float, printed.splitlines()[-1].split())
    return dict(zip(("seconds", "processor_seconds", "peak_gib"), numbers, strict=True))


def measure_start(folder: Path, count: int, rounds: int = 3) -> dict[str, Any]:
    """Return what the start takes with a share of many tiny images and with all, of the round with the median time."""
    rows = {}
    for number in dict.fromkeys(max(CLASSES, count // share) for share in SHARES_STARTED):
        pattern = save_tiny_set(folder / str(number), number)
        found = sorted((start_once(pattern) for _ in range(rounds)), key=lambda row: row["seconds"])
        rows[f"ours, {number:,} images"] = {"images": number} | found[rounds // 2]
    shards = -(-count // PER_SHARD)
    return {"images": count, "shards": shards, "classes": CLASSES, "starts": rounds, "rows": rows}


@plot_style
def draw_start(cell: dict[str, Any], path: Path) -> None:
    """Draw seconds and memory of the start over the number of images."""
    figure = Figure(figsize=(7.4, 3.2))
    rows = [*cell["rows"].values()]
    for axes, (key, label, color) in zip(
        figure.subplots(1, 2),
        (("seconds", "seconds to the first batch", BLUE), ("peak_gib", "peak memory, GB", ORANGE)),
        strict=True,
    ):
        factor = 2**30 / 1e9 if key == "peak_gib" else 1
        values = [factor * row[key] for row in rows]
        axes.plot([row["images"] for row in rows], values, "o-", color=color)
        axes.set(xscale="log", ylim=(0, 1.1 * max(values)), xlabel="images in shards (log scale)", ylabel=label)
        axes.set_xticks([row["images"] for row in rows], [f"{row['images']:,}" for row in rows])
        axes.minorticks_off()
    figure.suptitle("Start of a training on shards")
    figure.savefig(path)


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    if "rounds" in cell:
        return f"{cell['images']:,} images, {cell['rounds']} rounds of {cell['batches']} batches."
    classes = f" of {cell['classes']:,} classes" if "classes" in cell else ""
    return f"{cell['images']:,} images{classes} in {cell['shards']} shards."


def _readable(path: str, row: dict[str, Any]) -> dict[str, str]:
    if "images_per_second" in row:
        return {
            "path": path,
            "images per second": spread(row["images_per_second"], ",.0f"),
            "against the best other": spread(row["against_best_peer"], ".2f"),
        }
    if "twice" in row:
        return {
            "path": path,
            "images served twice": f"{row['twice']:,}",
            "never": f"{row['never']:,}",
            "batches of each process": ", ".join(f"{batches:g}" for batches in row["batches"]),
            "two in a row of one shard": f"{row['same_shard']:.0%}",
        }
    return {
        "path": path,
        "seconds": f"{row['seconds']:.1f}",
        "seconds of the processor": f"{row['processor_seconds']:.1f}",
        "peak memory, GB": f"{row['peak_gib'] * 2**30 / 1e9:.2f}",
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    kinds = ("speed", "epoch", "start")
    parser.add_argument("--cells", nargs="+", choices=kinds, default=kinds, help="what to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="timed calls of each path (default: 9)")
    parser.add_argument("--start", type=int, default=1_281_167, help="images of the start (default: 1,281,167)")
    parser.add_argument(
        "--tiny", type=Path, help="folder that keeps the shards of the start (default: a temporary one)"
    )
    options = parser.parse_args(arguments)
    made = provenance()
    measures = {
        "speed": partial(measure_speed, options.rounds),
        "epoch": measure_epoch,
        "start": lambda: measure_start(options.tiny or Path(temporary), options.start),
    }
    path = options.output / "shards.json"
    with TemporaryDirectory() as temporary:
        for name in options.cells:
            write_cell(path, name, made | measures[name](), report)
            if name == "start":
                draw_start(json.loads(path.read_text())[name], path.with_name("shards_start.png"))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
