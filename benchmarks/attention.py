"""Every attention mechanism on the same task and at the same sizes: accuracy, time, memory.

Measures one attention layer (64 channels, 2 heads, batch 1, float32) forward and backward over 64 to 16,384 tokens, and
trains the same small Vision Transformer with each mechanism for as many steps on the handwritten digits. Writes a table
(attention.md), the numbers (attention.json) and two plots. With --data it trains on class folders of images instead,
with the model of configs/cifar10_quick.yaml, and writes attention_images.*. The recipe is plain, AdamW on all patches
after Glorot's start, since not every mechanism can take what the configs add to that.

    python benchmarks/attention.py [--data data/cifar10-jpeg] [--steps 1600] [--mechanisms softmax window ...]
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from attention_figures import draw_accuracy, draw_cost

from vit.attention import MECHANISMS, MultiHeadAttention

ROOT = Path(__file__).parents[1]
TOKENS = [64, 256, 1024, 4096, 16384]
EMBED_DIM, NUM_HEADS = 64, 2

# On the grid of 4 x 4 patches of a digit, sizes at which the mechanisms are not softmax attention.
ON_DIGITS: dict[str, dict[str, int]] = {
    "window": {"window": 2},
    "neighborhood": {"kernel": 3},
    "topk": {"k": 4},
    "lowrank": {"landmarks": 4},
    "linformer": {"landmarks": 4},
}
ON_IMAGES: dict[str, dict[str, int]] = {"neighborhood": {"kernel": 5}}

PLAIN = ["--model.init=glorot", "--model.optimizer=adamw", "--model.patch_drop=0", "--model.patch_drop_until=1"]
PLAIN_ON_DIGITS = [*PLAIN, "--model.lr=3e-3", "--model.decay=cosine"]
PLAIN_ON_IMAGES = [*PLAIN, "--model.lr=2e-3", "--model.decay=linear"]

MEASURED = "forward and backward"
LONGEST_SECONDS = 60.0
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Train, measure, write, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="class folders of images to train on instead of the digits")
    parser.add_argument("--steps", type=int, help="training steps of each mechanism (1,600 on digits, 800 on images)")
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS), metavar="NAME")
    parser.add_argument(
        "--tokens", type=int, nargs="*", help="lengths to measure, squares; by default none with --data"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="interleaved measurements of each time, fewer where they take minutes"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--peak", nargs=2, metavar=("NAME", "TOKENS"), help="only print the peak memory of one pass")
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak_bytes(options.peak[0], int(options.peak[1]))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    steps = options.steps or (800 if options.data else 1600)
    path = options.out / ("attention_images.json" if options.data else "attention.json")
    result: dict[str, Any] = {"made": _made(), "steps": steps, "training": {}, "cost": {}}
    lengths = ([] if options.data else TOKENS) if options.tokens is None else options.tokens
    for tokens in lengths:
        result["cost"][str(tokens)] = costs(options.mechanisms, tokens, options.rounds, result["cost"])
        path.write_text(json.dumps(result, indent=1) + "\n")
    for name in options.mechanisms:
        result["training"][name] = train(name, options.data, steps)
        print(f"{name}: {100 * result['training'][name]['test_accuracy']:.1f} %", file=sys.stderr)
        path.write_text(json.dumps(result, indent=1) + "\n")
    report = table(result)
    path.with_suffix(".md").write_text(report)
    draw_accuracy(result, path.with_name(path.stem + "_accuracy.png"))
    if result["cost"]:
        draw_cost(result, path.with_name(path.stem + "_cost.png"))
    print(report)


def train(name: str, data: Path | None, steps: int) -> dict[str, Any]:
    """Train through the command line, and return what the run's results.json says of accuracy and time."""
    options = (ON_IMAGES if data else ON_DIGITS).get(name, {})
    config = ROOT / "configs" / ("cifar10_quick.yaml" if data else "digits.yaml")
    command = [sys.executable, ROOT / "train.py", "fit", "--config", config, "--model.attention", name]
    command += [f"--model.attention_kwargs.{key}={value}" for key, value in options.items()]
    command += PLAIN_ON_IMAGES if data else PLAIN_ON_DIGITS
    command += ["--trainer.max_epochs=-1", f"--trainer.max_steps={steps}", "--trainer.max_time=null"]
    command += ["--data", "ImageFolder", "--data.root", data.resolve()] if data else []
    with tempfile.TemporaryDirectory() as folder:  # becomes the parent of runs/
        finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise SystemExit(f"training with {name} failed:\n{finished.stderr[-2000:]}")
        results = json.loads(next(Path(folder).rglob("results.json")).read_text())
    kept = ("test_accuracy", "seconds", "steps", "parameters", "images_per_second", "precision")
    return {"options": options} | {key: results[key] for key in kept}


def costs(names: list[str], tokens: int, rounds: int, before: dict[str, Any]) -> dict[str, Any]:
    """Time and memory of every mechanism at one length, by name; None where it would take too much of either."""
    affordable = [name for name in names if _affordable(name, tokens, before)]
    layers = {name: layer(name, tokens) for name in affordable}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in affordable}
    start = time.monotonic()
    for done in range(rounds + 1):
        if done > 3 and time.monotonic() - start > LONGEST_SECONDS:
            break
        for name in affordable:  # in turn, so that all see the same weather on a shared machine
            times[name].append(seconds(*layers[name]))
    result: dict[str, Any] = dict.fromkeys(names)
    for name in affordable:
        forward, both = zip(*times[name][1:], strict=True)  # the first round warms up
        command = [sys.executable, __file__, "--peak", name, str(tokens)]
        peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        result[name] = {
            "seconds": {"forward": statistics.median(forward), MEASURED: statistics.median(both)},
            "bytes": peak,
        }
        print(f"{tokens} tokens, {name}: {result[name]}", file=sys.stderr)
    return result


def layer(name: str, tokens: int) -> tuple[MultiHeadAttention, torch.Tensor, tuple[int, int]]:
    """An attention layer with the mechanism's default options, a sequence for it, and its grid."""
    grid = (math.isqrt(tokens), math.isqrt(tokens))
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mechanism=name, grid_size=grid).to(DEVICE)
    return attention, torch.randn(1, tokens, EMBED_DIM, requires_grad=True, device=DEVICE), grid


def seconds(attention: MultiHeadAttention, x: torch.Tensor, grid: tuple[int, int]) -> tuple[float, float]:
    """Seconds of a forward pass without gradients, and of a forward and backward pass."""
    start = _now()
    with torch.no_grad():
        attention(x, grid=grid)
    middle = _now()
    attention(x, grid=grid).sum().backward()
    return middle - start, _now() - middle


def peak_bytes(name: str, tokens: int) -> dict[str, int]:
    """Peak memory of the two passes, beyond what the process held before; to be called once in a process."""
    seconds(*layer(name, 64))  # libraries take what they need
    attention, x, grid = layer(name, tokens)
    before = _peak_since_start()
    with torch.no_grad():
        attention(x, grid=grid)
    forward = _peak() - before
    attention(x, grid=grid).sum().backward()
    return {"forward": forward, MEASURED: _peak() - before}


def slope(values: dict[str, float]) -> float:
    """Exponent of the growth between the last two lengths: log-log slope."""
    (short, first), (long, second) = list(values.items())[-2:]
    return math.log(second / first) / math.log(int(long) / int(short))


def series(result: dict[str, Any], name: str, what: str) -> dict[str, float]:
    """Seconds or bytes of a mechanism's forward and backward pass by number of tokens, as far as it was measured."""
    measured = {tokens: costs[name] for tokens, costs in result["cost"].items() if costs[name]}
    return {tokens: cost[what][MEASURED] for tokens, cost in measured.items()}


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Made by `{result['made']['command']}` on {result['made']['machine']}, {result['made']['date']}.",
        f"Accuracy: after {result['steps']:,} steps, one run each, so that small differences may be chance.",
    ]
    head = ["mechanism", "options in training", "test accuracy", "training"]
    if result["cost"]:
        longest = list(result["cost"])[-1]
        lines[-1] += (
            f" Time and memory: one layer, {MEASURED}, at {int(longest):,} tokens; slope: exponent of their growth."
        )
        head += ["time", "slope", "memory", "slope"]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, trained in result["training"].items():
        options = ", ".join(f"{key} {value}" for key, value in trained["options"].items())
        cells = [name, options, f"{100 * trained['test_accuracy']:.1f} %", f"{trained['seconds']:.0f} s"]
        lines.append(f"| {' | '.join(cells + _cost_cells(result, name))} |")
    return "\n".join(lines) + "\n"


def _cost_cells(result: dict[str, Any], name: str) -> list[str]:
    """Time and memory at the greatest length, each with the slope up to there."""
    cells = []
    for what, unit, scale in (("seconds", "ms", 1e3), ("bytes", "MB", 1e-6)) if result["cost"] else ():
        values = series(result, name, what)
        longest = list(result["cost"])[-1]
        cells.append(f"{scale * values[longest]:,.0f} {unit}" if longest in values else "too much")
        cells.append(f"{slope(values):.2f}" if longest in values and len(values) > 1 else "")
    return cells


def _affordable(name: str, tokens: int, before: dict[str, Any]) -> bool:
    """Whether growth with the square of the length since the last measurement stays within time and memory."""
    if not before:
        return True
    last_tokens, last = list(before.items())[-1]
    growth = (tokens / int(last_tokens)) ** 2
    cost = last[name]
    return (
        cost is not None
        and cost["seconds"][MEASURED] * growth < LONGEST_SECONDS
        and cost["bytes"][MEASURED] * growth < 0.8 * _free_bytes()
    )


def _now() -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak_since_start() -> int:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is held now
    return _peak()


def _peak() -> int:
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _free_bytes() -> int:
    if DEVICE.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])


def _made() -> dict[str, str]:
    if DEVICE.type == "cuda":
        machine = torch.cuda.get_device_name()
    else:
        model = Path("/proc/cpuinfo").read_text().split("model name\t: ")[1].split("\n")[0]
        machine = f"{torch.get_num_threads()} threads of {model}"
    command = " ".join(["python", "benchmarks/attention.py", *sys.argv[1:]])
    return {"command": command, "machine": f"{machine}, torch {torch.__version__}", "date": str(date.today())}


if __name__ == "__main__":
    main()
