"""Time of inference on CPUs with and without ``vit.keep_freed_memory``.

A process cannot undo the call, so processes with and without it take turns, one at a time. In each, every model runs a
few batches of random images without gradients; its time is their median. Models are eager, and bfloat16 is autocast.

    python benchmarks/kept_memory.py [--rounds 4] [--output benchmarks/results]
"""

import itertools
import json
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

import torch
from records import command_line, made_at, origin, write_results
from side_by_side import autocast, quartiles, spread, timed
from throughput import DTYPES
from throughput_models import SIZES, ours, timm
from torch import Tensor, nn

import vit
from vit.support.markdown import markdown_table

LIBRARIES = {"ours": ours, "timm": timm}
BATCHES = {"192x6-p4-32": (128, 512), "S16-224": (64,)}
CALLS = 3  # of a model in a process; the first is not timed
CPU = torch.device("cpu")


def seconds_of_models() -> dict[str, float]:
    """Return the seconds of a batch of each model in this process."""
    seconds = {}
    for (size, batches), (library, build) in itertools.product(BATCHES.items(), LIBRARIES.items()):
        model = build(SIZES[size]).eval()
        for batch, (name, dtype) in itertools.product(batches, DTYPES.items()):
            images = torch.randn(batch, 3, SIZES[size].image_size, SIZES[size].image_size)
            times = [timed(partial(classify, model, images, dtype), CPU) for _ in range(CALLS)]
            seconds[f"{size}, {batch} images, {name}, {library}"] = statistics.median(times[1:])
    return seconds


def classify(model: nn.Module, images: Tensor, dtype: torch.dtype) -> None:
    """Run a model once."""
    with torch.inference_mode(), autocast(CPU, dtype):
        model(images)


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return quartiles of the milliseconds of each model, "freed" and "kept", and of their ratio."""
    times: dict[str, list[dict[str, float]]] = {"freed": [], "kept": []}
    for turn in range(rounds):
        for name in times if turn % 2 == 0 else reversed(times):
            words = [sys.executable, __file__, "--serve", name]
            output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            times[name].append(json.loads(output))
    rows: dict[str, dict[str, list[float]]] = {}
    for model in times["freed"][0]:
        of_model = {name: [each[model] for each in rounds_] for name, rounds_ in times.items()}
        rows[model] = {name: quartiles(1000 * each for each in seconds) for name, seconds in of_model.items()}
        ratios = (freed / kept for freed, kept in zip(of_model["freed"], of_model["kept"], strict=True))
        rows[model]["ratio"] = quartiles(ratios)
    return rows


def table(results: dict[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    rows = []
    for name, row in results["rows"].items():
        size, batch, dtype, library = name.split(", ")
        milliseconds = {f"{memory}, ms": spread(row[memory], ",.0f") for memory in ("freed", "kept")}
        columns = {"model": size, "batch": batch, "type": dtype, "library": library}
        rows.append(columns | milliseconds | {"times as fast": spread(row["ratio"], ".2f")})
    return markdown_table(rows, right={"freed, ms", "kept, ms", "times as fast"})


def report(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    head = (
        "# Memory that is kept\n\nInference on CPUs, as processes free memory and as they keep it "
        f"(`vit.keep_freed_memory`): medians and quartiles of {results['rounds']} rounds."
    )
    return f"{head}\n\n{table(results)}\n\n{made_at(results['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="processes with and without, each (default: 4)")
    parser.add_argument("--serve", choices=["freed", "kept"], help="what a process does with memory")
    options = parser.parse_args(arguments)
    if options.serve:
        if options.serve == "kept" and not vit.keep_freed_memory():
            sys.exit("the allocator of this system keeps no memory by request")
        print(json.dumps(seconds_of_models()))
        return
    results = {"made": origin(), "rounds": options.rounds, "rows": measure(options.rounds)}
    path = options.output / "kept_memory.json"
    write_results(path, results, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
