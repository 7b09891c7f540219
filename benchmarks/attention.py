"""Every attention mechanism on the same task and at the same sizes: accuracy, time, memory.

Measures one attention layer forward and backward over 64 to 16,384 tokens, and trains the same small Vision Transformer
with each mechanism for as many steps on the handwritten digits. Writes a table (attention.md), the numbers
(attention.json) and two plots. With --data it trains on class folders of images instead, with the model of
configs/cifar10_quick.yaml, and writes attention_images.*. The recipe is plain, AdamW on all patches after Glorot's
start, since not every mechanism can take what the configs add to that. A mechanism whose training fails is one line on
stderr, and the others go on.

    python benchmarks/attention.py [--data data/cifar10-jpeg] [--steps 1600] [--mechanisms softmax window ...]
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from attention_cost import MEASURED, costs
from attention_figures import draw_accuracy, draw_cost
from records import RESULTS, markdown_table, origin
from training_runs import TrainingError, train

from vit.attention import MECHANISMS

CONFIGS = Path(__file__).parents[1] / "configs"
TOKENS = [64, 256, 1024, 4096, 16384]

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
KEPT = ("test_accuracy", "seconds", "steps", "parameters", "images_per_second", "precision")


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
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    if options.output == RESULTS and options.mechanisms != list(MECHANISMS):
        parser.error(f"results of some mechanisms would take the place of those of all in {RESULTS}: name --output")
    if odd := [length for length in options.tokens or [] if math.isqrt(length) ** 2 != length]:
        nearest = round(odd[0] ** 0.5) ** 2
        parser.error(f"--tokens ({odd[0]}) must be squares, of grids as wide as high: the nearest is {nearest}")
    options.output.mkdir(parents=True, exist_ok=True)
    steps = options.steps or (800 if options.data else 1600)
    path = options.output / ("attention_images.json" if options.data else "attention.json")
    result: dict[str, Any] = {"made": origin(), "steps": steps, "training": {}, "cost": {}}
    lengths = ([] if options.data else TOKENS) if options.tokens is None else options.tokens
    for tokens in lengths:
        result["cost"][str(tokens)] = costs(options.mechanisms, tokens, options.rounds, result["cost"])
        path.write_text(json.dumps(result, indent=1) + "\n")
    for name in options.mechanisms:
        try:
            result["training"][name] = trained(name, options.data, steps)
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        path.write_text(json.dumps(result, indent=1) + "\n")
    report = table(result)
    path.with_suffix(".md").write_text(report)
    if result["training"]:
        draw_accuracy(result, path.with_name(path.stem + "_accuracy.png"))
    if result["cost"]:
        draw_cost(result, path.with_name(path.stem + "_cost.png"))
    print(report)
    if failed := len(options.mechanisms) - len(result["training"]):
        raise SystemExit(f"error: {failed} of {len(options.mechanisms)} trainings failed")


def trained(name: str, data: Path | None, steps: int) -> dict[str, Any]:
    """Train through the command line, and return what the run's results.json says of accuracy and time.

    Raises:
        TrainingError: If the run fails.
    """
    options = (ON_IMAGES if data else ON_DIGITS).get(name, {})
    config = CONFIGS / ("cifar10_quick.yaml" if data else "digits.yaml")
    typed = ["--config", str(config), "--experiment", f"attention_{name}", "--model.attention", name]
    typed += [f"--model.attention_kwargs.{key}={value}" for key, value in options.items()]
    typed += PLAIN_ON_IMAGES if data else PLAIN_ON_DIGITS
    typed += ["--trainer.max_epochs=-1", f"--trainer.max_steps={steps}", "--trainer.max_time=null"]
    typed += ["--data", "ImageFolder", "--data.root", str(data)] if data else []
    results = train(name, typed)
    return {"options": options} | {key: results[key] for key in KEPT}


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
    made = "Made by `{command}` on {machine}, {date}.".format(**result["made"])
    meaning = f"Accuracy: after {result['steps']:,} steps, one run each, so that small differences may be chance."
    if result["cost"]:
        longest = int(list(result["cost"])[-1])
        meaning += f" Time and memory: one layer, {MEASURED}, at {longest:,} tokens; slope: exponent of their growth."
    rows = []
    for name in dict.fromkeys([*next(iter(result["cost"].values()), {}), *result["training"]]):
        run = result["training"].get(name)
        options = ", ".join(f"{key} {value}" for key, value in run["options"].items()) if run else ""
        accuracy = {"test accuracy": f"{100 * run['test_accuracy']:.1f} %", "training": f"{run['seconds']:.0f} s"}
        rows.append({"mechanism": name, "options in training": options} | (accuracy if run else {}))
        rows[-1] |= _cost_cells(result, name)
    return f"{made}\n{meaning}\n\n{markdown_table(rows)}\n"


def _cost_cells(result: dict[str, Any], name: str) -> dict[str, str]:
    """Time and memory at the greatest length, each with the slope up to there."""
    cells = {}
    for what, title, unit, scale in (("seconds", "time", "ms", 1e3), ("bytes", "memory", "MB", 1e-6)):
        if result["cost"]:
            values = series(result, name, what)
            longest = list(result["cost"])[-1]
            cells[title] = f"{scale * values[longest]:,.0f} {unit}" if longest in values else "too much"
            cells[f"slope of {title}"] = f"{slope(values):.2f}" if longest in values and len(values) > 1 else ""
    return cells


if __name__ == "__main__":
    main()
