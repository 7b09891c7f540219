"""Time of inference on CPUs: `vit.optimize` beside four libraries, eager and compiled with constant weights.

Each candidate runs in a process of its own, as the threads of OpenVINO spin and would slow torch down. The processes
take turns: one at a time, in every round. All keep the memory that they free (`vit.keep_freed_memory`): otherwise the
place of a tensor in memory decides, by chance, how much of it the system has to clear in each pass. All tokens are
computed (ours pools the mean of the patches; the others read the class token, and compute all the same), but in
"ours, class token": this model reads the class token alone, and its last block computes nothing else. A cell is a
precision and a batch; int8 is measured beside bfloat16.

A library computes in bfloat16 by autocast, and with weights in bfloat16. Two of them have explicit attention as well,
which is measured eager. timm's model runs in OpenVINO, too, which is what `vit.optimize` takes.

    python benchmarks/inference.py prepare [--dtypes fp32 bf16] [--batches 1 128]  # fills the compiler's caches
    python benchmarks/inference.py time [--dtypes fp32 bf16] [--batches 1 128] [--rounds 9] [--output FOLDER]
    python benchmarks/inference.py accuracy --data data/cifar10-jpeg [--dtypes fp32 bf16 int8]
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from records import command_line, comparison, provenance, write_cell
from side_by_side import autocast, quartiles, spread
from throughput_models import EXPLICIT, NUM_CLASSES, PEERS, SIZES
from torch import Tensor, nn

import vit
from vit.inference.engines import batch_program, openvino_model, run_in_openvino

SIZE = SIZES["192x6-p4-32"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
CALIBRATION, TESTED = 300, 10_000
READY, GO = "ready", "go"
CALLS = {1: 20}  # in a round, by batch; 1 for others
ENGINES = ("openvino", "compile")  # of vit.optimize
WAYS = ("eager", "compiled", "openvino")  # to run the models of other libraries
OURS = "ours"
CLASS_TOKEN = f"{OURS}, class token"  # our model whose head reads that alone
BY_WEIGHTS = "bf16 weights"  # the weights are bfloat16, and not only the products, as by autocast

REPORT = """# Inference on CPUs

Milliseconds of a batch of random images: median over the rounds, with quartiles. Each candidate has a process of its
own, which keeps the memory that it frees, and the processes take turns. The ratios are those of medians to the fastest
other library, eager, compiled, and in OpenVINO.
"""


def ours(pool: str) -> vit.VisionTransformer:
    """Build the model of this package."""
    sides = {"image_size": SIZE.image_size, "patch_size": SIZE.patch_size, "num_classes": NUM_CLASSES, "pool": pool}
    return vit.VisionTransformer(embed_dim=SIZE.embed_dim, depth=SIZE.depth, num_heads=SIZE.num_heads, **sides).eval()


def candidates(dtype: str) -> list[str]:
    """Return the names of what is timed in a precision: a model, and how it is run."""
    eager = [f"{name}, eager" for name in (*PEERS, *EXPLICIT)]
    compiled = [f"{name}, compiled" for name in PEERS]
    others = [*eager, *compiled]
    if dtype == "bf16":
        others += [f"{candidate} {BY_WEIGHTS}" for candidate in others]
    own = ["ours, eager", *(f"{name}, {engine} {dtype}" for name in (OURS, CLASS_TOKEN) for engine in ENGINES)]
    if dtype == "bf16":
        own += [f"ours, eager {BY_WEIGHTS}", "ours, openvino int8"]
    return [*others, "timm, openvino", *own]


def built(candidate: str, dtype: str, images: Tensor) -> Callable[[], Any]:
    """Return a function that runs a candidate once."""
    name, way = candidate.rsplit(", ", 1)
    models = PEERS | EXPLICIT | {OURS: lambda _: ours("mean"), CLASS_TOKEN: lambda _: ours("cls")}
    model = models[name](SIZE).eval()
    if way == "openvino":
        fast = run_in_openvino(openvino_model(batch_program(model, tuple(images.shape[1:]))), DTYPES[dtype])
        return lambda: fast(images)
    if name in (OURS, CLASS_TOKEN) and not way.startswith("eager"):
        engine, precision = way.split()
        calibration = torch.randn(CALIBRATION, *images.shape[1:]) if precision == "int8" else None
        fast = vit.optimize(model, DTYPES[precision], calibration, engine=engine)
        return lambda: fast(images)
    return in_torch(model, way, dtype, images)


def in_torch(model: nn.Module, way: str, dtype: str, images: Tensor) -> Callable[[], Any]:
    """Return a function that runs a model once, eager or compiled, in bfloat16 by autocast or by its weights."""
    if BY_WEIGHTS in way:
        model, images = model.to(torch.bfloat16), images.to(torch.bfloat16)
    run, type_of_products = model, torch.float32 if BY_WEIGHTS in way else DTYPES[dtype]
    if way.startswith("compiled"):
        torch._inductor.config.freezing = True
        run = torch.compile(model)

    def step() -> None:
        with torch.no_grad(), autocast(images.device, type_of_products):
            run(images)

    return step


def serve(candidate: str, dtype: str, batch: int) -> None:
    """Build a candidate, then run it once for each line of the input and print the seconds."""
    vit.keep_freed_memory()
    torch.manual_seed(0)
    step = built(candidate, dtype, torch.randn(batch, 3, SIZE.image_size, SIZE.image_size))
    for _ in range(3):
        step()
    print(READY, flush=True)
    calls = CALLS.get(batch, 1)
    for _ in sys.stdin:
        step()  # wakes the threads
        start = time.perf_counter()
        for _ in range(calls):
            step()
        print((time.perf_counter() - start) / calls, flush=True)


class Process:
    """A process that serves one candidate.

    Raises:
        ValueError: If the candidate cannot be built.
    """

    def __init__(self, candidate: str, dtype: str, batch: int) -> None:
        command = [
            sys.executable,
            __file__,
            "serve",
            "--candidate",
            candidate,
            "--dtypes",
            dtype,
            "--batches",
            str(batch),
        ]
        with TemporaryFile("w+") as errors:  # a pipe that is not read would fill up
            self.pipes = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            # Engines print as well.
            if not any(line.strip() == READY for line in self.pipes.stdout):
                errors.seek(0)
                raise ValueError(errors.read().strip().splitlines()[-1])

    def seconds(self) -> float:
        """Run the candidate once."""
        print(GO, file=self.pipes.stdin, flush=True)
        return float(self.pipes.stdout.readline())

    def end(self) -> None:
        """Let the process end."""
        self.pipes.communicate()


def started(dtype: str, batch: int) -> tuple[dict[str, Process], dict[str, str]]:
    """Start a process for each candidate, one after the other; return those that run, and why others do not."""
    processes, failed = {}, {}
    for name in candidates(dtype):
        try:
            processes[name] = Process(name, dtype, batch)
        except ValueError as error:
            failed[name] = str(error)
    return processes, failed


def measure(dtype: str, batch: int, rounds: int) -> dict[str, Any]:
    """Return one cell: a row for each candidate."""
    processes, failed = started(dtype, batch)
    times: dict[str, list[float]] = {name: [] for name in processes}
    for turn in range(rounds):
        for name in processes if turn % 2 == 0 else reversed(processes):
            times[name].append(processes[name].seconds())
    for process in processes.values():
        process.end()
    rows: dict[str, Any] = {name: {"failed": reason} for name, reason in failed.items()}
    return {"batch": batch, "rounds": rounds, "rows": rows | compared(times)}


def compared(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return quartiles of the milliseconds of each candidate, and its speed beside the best library in each way.

    >>> rows = compared({"timm, eager": [0.2], "timm, compiled": [0.1], "ours, eager": [0.05]})
    >>> rows["ours, eager"]["against_best_eager"], rows["ours, eager"]["against_best_compiled"]
    (4.0, 2.0)
    """
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, seconds in times.items():
        rows[name] = {"milliseconds": quartiles(1000 * each for each in seconds)}
        for way in WAYS:
            peers = [median for peer, median in medians.items() if is_way_of_library(peer, way)]
            if peers:
                rows[name][f"against_best_{way}"] = min(peers) / medians[name]
    return rows


def is_way_of_library(candidate: str, way: str) -> bool:
    """Return whether a candidate is another library's model, run in a way such as "eager"."""
    name, found = candidate.rsplit(", ", 1)
    return not name.startswith(OURS) and found.removesuffix(f" {BY_WEIGHTS}") == way


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    if "rounds" in cell:
        return f"Batch {cell['batch']}, {cell['rounds']} rounds."
    return (
        f"{cell['images']:,} test images of CIFAR-10, the packaged model; int8 calibrated on {CALIBRATION} of training."
    )


def _readable(name: str, row: dict[str, Any]) -> dict[str, str]:
    if "failed" in row:
        return {"candidate": name, "milliseconds": row["failed"]}
    if "accuracy" in row:
        return {"candidate": name, "test accuracy": f"{row['accuracy']:.2%}"}
    ratios = {f"beside the best {way}": row.get(f"against_best_{way}") for way in WAYS}
    texts = {column: "" if ratio is None else f"{ratio:.2f}" for column, ratio in ratios.items()}
    return {"candidate": name, "milliseconds": spread(row["milliseconds"], ".1f")} | texts


def accuracy(data: Path, dtypes: list[str], images: int) -> dict[str, Any]:
    """Return the test accuracy of the packaged model in several precisions."""
    model = vit.load("cifar10")
    calibration, _ = cifar(data, "train", CALIBRATION, model)
    tested, labels = cifar(data, "test", images, model)
    rows = {}
    for dtype in dtypes:
        fast = vit.optimize(model, DTYPES[dtype], calibration if dtype == "int8" else None)
        predicted = torch.cat([fast(batch).argmax(1) for batch in tested.split(128)])
        rows[f"{fast.engine} {dtype}"] = {"accuracy": (predicted == labels).double().mean().item()}
    return {"images": len(tested), "rows": rows}


def cifar(data: Path, part: str, count: int, model: vit.VisionTransformer) -> tuple[Tensor, Tensor]:
    """Return normalised images of CIFAR-10 and their labels, equally many of each class."""
    from PIL import Image
    from torchvision.transforms.functional import to_tensor

    folders = sorted(folder for folder in (data / part).iterdir() if folder.is_dir())
    files = [
        (file, i) for i, folder in enumerate(folders) for file in sorted(folder.iterdir())[: count // len(folders)]
    ]
    mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
    images = torch.stack([(to_tensor(Image.open(file).convert("RGB")) - mean) / std for file, _ in files])
    return images, torch.tensor([label for _, label in files])


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("part", choices=["prepare", "time", "accuracy", "serve"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1])
    parser.add_argument("--rounds", type=int, default=9, help="timed calls of each candidate (default: 9)")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10's images, for the accuracy")
    parser.add_argument("--images", type=int, default=TESTED, help=f"test images (default: {TESTED:,})")
    parser.add_argument("--candidate", help="what a process serves")
    options = parser.parse_args(arguments)
    if options.part == "serve":
        return serve(options.candidate, options.dtypes[0], options.batches[0])
    path = options.output / "inference.json"
    made = provenance()
    if options.part == "accuracy":
        if options.data is None:
            parser.error("the accuracy needs --data")
        write_cell(path, "accuracy", made | accuracy(options.data, options.dtypes, options.images), report)
    for dtype in options.dtypes if options.part != "accuracy" else []:
        for batch in options.batches:
            if options.part == "prepare":
                for name in candidates(dtype):
                    Process(name, dtype, batch).end()
                continue
            write_cell(path, f"{dtype} batch {batch}", made | measure(dtype, batch, options.rounds), report)
    page = path.with_suffix(".md")
    return print(page.read_text() if page.exists() else "")


if __name__ == "__main__":
    main()
