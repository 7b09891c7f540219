"""Time and memory of an image as images and batches grow, in five libraries.

A Vision Transformer of 192 channels and 2 blocks, patches of 4 pixels, every token computed. "tokens": one image of 32
to 512 pixels a side, 65 to 16,385 tokens. "batch": 1 to 512 images of 65 tokens. "features" are those after the last
four blocks of a model of 6 blocks, from forward_intermediates and get_intermediate_layers of ours and of timm, which
share their weights.

The libraries take turns in one process. Memory is the most that tensors made in a pass take at one time: PyTorch's
profiler counts what is allocated and freed, so that it does not matter what ran before. A cell is written as soon as it
is measured; one of this commit that is there is not measured again.

    python benchmarks/scale.py [--parts tokens batch features] [--modes inference training] [--dtypes fp32 bf16]
        [--seconds 5] [--output benchmarks/results]
"""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from records import command_line, is_measured, made, provenance, write_cell
from scale_figure import draw_scale
from side_by_side import DEVICE, autocast, compared, interleaved, timed
from throughput import DTYPES, built, inference_step, reason, training_step
from throughput_models import NUM_CLASSES, PEERS, Size, check_same, ours, timm
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from vit.support.markdown import markdown_table

LIBRARIES = {"ours": ours} | PEERS
POINTS = {
    "tokens": {"inference": (32, 64, 128, 256, 512), "training": (32, 64, 128)},  # pixels a side
    "batch": {"inference": (1, 8, 64, 512), "training": (1, 8, 64, 512)},
    "features": {"inference": (1, 64)},  # images
}
STEPS = {"inference": inference_step, "training": training_step}
ROUNDS = (3, 25)  # at least and at most
SLOWER = 0.95  # of the speed of the fastest other library

REPORT = """# Time and memory as images and batches grow

192 channels, 2 blocks, patches of 4 pixels, eager, float32 or bfloat16 autocast. Times are medians over the rounds of
an interleaved run, for one image. Memory is the most that tensors made in a pass take at one time, for one image,
without weights and images. In brackets: the speed of ours as a multiple of that of the fastest other library in the
same round.
"""


def size_of(side: int, depth: int = 2) -> Size:
    """Return the model for square images of some pixels a side."""
    return Size(side, 4, 192, depth, 3, {})


def allocated(call: Callable[[], object]) -> int:
    """Return the most bytes that a call's tensors take at one time on the CPU, beyond those of before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    sizes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    ]
    return max(itertools.accumulate((size for _, size in sorted(sizes, key=lambda each: each[0])), initial=0))


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a call's tensors take at one time, beyond those of before."""
    if device.type == "cpu":
        return allocated(call)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def compare(calls: dict[str, Callable[[], object]], batch: int, seconds: float) -> dict[str, Any]:
    """Return rounds, and for each call its images per second, seconds and bytes of an image, or why it failed."""
    rows: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            once = timed(call, DEVICE)  # what the first call keeps, such as packed weights, is no memory of a pass
            rows[name] = {"bytes": peak_memory(call, DEVICE) / batch, "once": once}
        except Exception as error:  # such as too little memory: the other libraries are still measured
            rows[name] = {"failed": reason(error)}
    running = {name: calls[name] for name, row in rows.items() if "failed" not in row}
    fewest, most = ROUNDS
    rounds = min(most, max(fewest, int(seconds / sum(rows[name].pop("once") for name in running))))
    times = interleaved(running, rounds, 1 if rounds > fewest else 0, DEVICE)
    peers = [name for name in running if not name.startswith("ours")]
    for name, row in compared(times, batch, peers).items():
        rows[name] |= row | {"seconds": 1 / row["images_per_second"][1]}
    return {"rounds": rounds, "rows": rows}


def passes(part: str, value: int, mode: str, dtype: torch.dtype) -> tuple[dict[str, Callable[[], object]], int]:
    """Return the calls of a cell and the number of their images."""
    torch.manual_seed(0)
    size, batch = (size_of(value), 1) if part == "tokens" else (size_of(32), value)
    images = torch.randn(batch, 3, size.image_size, size.image_size, device=DEVICE)
    if part == "features":
        return feature_calls(images, dtype), batch
    labels = torch.randint(NUM_CLASSES, (batch,), device=DEVICE)
    models, failed = built(size, LIBRARIES)
    for name, why in failed.items():
        print(f"{name}: {why}", file=sys.stderr)
    return {name: STEPS[mode](model.to(DEVICE), images, labels, dtype) for name, model in models.items()}, batch


def feature_calls(images: Tensor, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return how ours and timm compute the features after the last four blocks, with the same weights."""
    size = size_of(32, depth=6)
    models = {"ours": ours(size), "timm": timm(size)}
    check_same(models, size)
    ways: dict[str, dict[str, Any]] = {
        "forward_intermediates": {"indices": 4, "norm": True, "intermediates_only": True},
        "get_intermediate_layers": {"n": 4, "norm": True, "reshape": True},
    }

    def call(model: nn.Module, way: str) -> None:
        with torch.inference_mode(), autocast(DEVICE, dtype):
            getattr(model, way)(images, **ways[way])

    return {
        f"{name}, {way}": partial(call, model.to(DEVICE).eval(), way) for way in ways for name, model in models.items()
    }


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    parts = [REPORT, f"{slower(cells)}\n"]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in sorted(cells.values(), key=lambda cell: (cell["part"] == "features", cell["value"])):
        groups.setdefault((cell["part"], cell["mode"], cell["dtype"]), []).append(cell)
    for (part, mode, dtype), group in groups.items():
        rows = [{part.replace("features", "batch"): f"{cell['value']:,}"} | _readable(cell) for cell in group]
        loads = [cell["machine"]["load"] for cell in group]
        load = {"load": f"{min(loads)} to {max(loads)}"}
        origins = " ".join(dict.fromkeys(made(cell | {"machine": cell["machine"] | load}) for cell in group))
        parts.append(
            f"## {part.capitalize()}, {mode}, {dtype}\n\n{markdown_table(rows, right=[*rows[0]])}\n\n{origins}\n"
        )
    return "\n".join(parts)


def slower(cells: dict[str, Any]) -> str:
    """Return a sentence that names where ours is slower than the fastest other library."""
    ratios: dict[str, list[str]] = {}  # an image of 65 tokens is in both sweeps
    for name, cell in cells.items():
        for row, measured in cell["rows"].items():
            if row.startswith("ours") and (ratio := measured.get("against_best_peer", [0, 1])[1]) < SLOWER:
                words = f"{in_words(name)}{row.removeprefix('ours').replace(', ', ' by ')}"
                ratios.setdefault(words, []).append(f"{ratio:.2f}")
    found = [
        f"{words} ({' and '.join(of_words)}{', measured twice' * (len(of_words) == 2)})"
        for words, of_words in ratios.items()
    ]
    share = f"more than {100 * (1 - SLOWER):.0f} %"
    if not found:
        return f"Nowhere is ours {share} slower than the fastest other library."
    return f"Ours is {share} slower than the fastest other library at: {'; '.join(found)}."


def in_words(name: str) -> str:
    """Return the name of a cell in words.

    >>> in_words("tokens 65 inference bf16"), in_words("batch 512 training fp32")
    ('one image of 65 tokens in bf16', 'training on 512 images of 65 tokens in fp32')
    >>> in_words("features 1 inference bf16")
    'features of one image of 65 tokens in bf16'
    """
    part, value, mode, dtype = name.split()
    count, tokens = (1, value) if part == "tokens" else (int(value), "65")
    images = "one image" if count == 1 else f"{count} images"
    task = "features of " if part == "features" else "training on " if mode == "training" else ""
    return f"{task}{images} of {tokens} tokens in {dtype}"


def _readable(cell: dict[str, Any]) -> dict[str, str]:
    columns = {}
    for name, row in cell["rows"].items():
        if "failed" in row:
            columns[name] = row["failed"]
            continue
        ratio = f" ({row['against_best_peer'][1]:.2f})" if name.startswith("ours") else ""
        columns[name] = f"{1e3 * row['seconds']:,.3g} ms{ratio}, {row['bytes'] / 2**20:,.3g} MiB"
    return columns


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", nargs="+", choices=POINTS, default=list(POINTS))
    parser.add_argument("--modes", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seconds", type=float, default=5.0, help="time of a cell if it allows 3 rounds (default: 5)")
    options = parser.parse_args(arguments)
    path = options.output / "scale.json"
    for part, mode, dtype in itertools.product(options.parts, options.modes, options.dtypes):
        for point in POINTS[part].get(mode, ()):
            value = size_of(point).tokens() if part == "tokens" else point
            name, at = f"{part} {value} {mode} {dtype}", provenance()
            if is_measured(path, name):
                continue
            calls, batch = passes(part, point, mode, DTYPES[dtype])
            cell = {"part": part, "value": value, "mode": mode, "dtype": dtype}
            write_cell(path, name, cell | compare(calls, batch, options.seconds) | at, report)
            print(f"{name}: done", file=sys.stderr)
    draw_scale(path)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
