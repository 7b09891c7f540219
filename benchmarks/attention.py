"""Every attention mechanism on the same task and at the same sizes: accuracy, time, memory.

Measures one attention layer forward and backward over 64 to 16,384 tokens, and trains the same small Vision Transformer
with each mechanism for the same number of steps on the handwritten digits. Writes a table (attention.md), the numbers
(attention.json) and two plots. With --data it trains on class folders of images instead, with the model of
configs/cifar10_quick.yaml, and writes attention_images.*. The recipe is plain, AdamW on all patches after Glorot's
initialisation, since not every mechanism supports the rest of the configs. A mechanism whose training fails is one line
on stderr, and the next one starts.

    python benchmarks/attention.py [--data data/cifar10-jpeg] [--steps 1600] [--mechanisms softmax window ...]
"""

import math
import sys
from pathlib import Path
from typing import Any

from attention_cost import MEASURED, costs
from attention_figures import draw_accuracy, draw_cost
from records import RESULTS, command_line, made_at, origin, write_results
from training_runs import TrainingError, train

from vit.attention import MECHANISMS
from vit.support.markdown import markdown_table

CONFIGS = Path(__file__).parents[1] / "configs"
TOKENS = [64, 256, 1024, 4096, 16384]

# Sizes for the 4 x 4 patches of a digit; with larger ones, these mechanisms would equal softmax attention.
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
KEPT = ("test_accuracy", "seconds", "steps", "seed", "parameters", "images_per_second", "precision")


def main(arguments: list[str] | None = None) -> None:
    """Train, measure, write, and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="class folders of images to train on instead of the digits")
    parser.add_argument("--steps", type=int, help="training steps of each mechanism (1,600 on digits, 800 on images)")
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS), metavar="NAME")
    parser.add_argument(
        "--tokens", type=int, nargs="*", help="lengths to measure, squares; by default none with --data"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="interleaved measurements of each time, fewer if they take minutes"
    )
    options = parser.parse_args(arguments)
    if options.output == RESULTS and options.mechanisms != list(MECHANISMS):
        parser.error(f"results of some mechanisms would replace those of all in {RESULTS}: give another --output")
    if odd := [length for length in options.tokens or [] if math.isqrt(length) ** 2 != length]:
        nearest = round(odd[0] ** 0.5) ** 2
        parser.error(f"--tokens ({odd[0]}) must be squares, for a square grid: the nearest is {nearest}")
    steps = options.steps or (800 if options.data else 1600)
    path = options.output / ("attention_images.json" if options.data else "attention.json")
    result: dict[str, Any] = {"made": origin(), "steps": steps, "training": {}, "cost": {}}
    lengths = ([] if options.data else TOKENS) if options.tokens is None else options.tokens
    for tokens in lengths:
        result["cost"][str(tokens)] = costs(options.mechanisms, tokens, options.rounds, result["cost"])
        write_results(path, result, table)
    for name in options.mechanisms:
        try:
            result["training"][name] = trained(name, options.data, steps)
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        write_results(path, result, table)
    draw(result, path)
    print(table(result))
    if failed := len(options.mechanisms) - len(result["training"]):
        raise SystemExit(f"error: {failed} of {len(options.mechanisms)} trainings failed")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the plots beside the file of results."""
    if result["training"]:
        draw_accuracy(result, path.with_name(path.stem + "_accuracy.png"))
    if result["cost"]:
        draw_cost(result, path.with_name(path.stem + "_cost.png"))


def trained(name: str, data: Path | None, steps: int) -> dict[str, Any]:
    """Train through the command line, and return accuracy and time from the run's results.json.

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
    """Return the exponent of the growth between the last two lengths, the slope of log over log."""
    (short, first), (long, second) = list(values.items())[-2:]
    return math.log(second / first) / math.log(int(long) / int(short))


def series(result: dict[str, Any], name: str, what: str) -> dict[str, float]:
    """Return a mechanism's "seconds" or "bytes", forward and backward, by number of tokens; measured lengths only."""
    measured = {tokens: costs[name] for tokens, costs in result["cost"].items() if costs[name]}
    return {tokens: cost[what][MEASURED] for tokens, cost in measured.items()}


def table(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    meaning = f"Accuracy: after {result['steps']:,} steps, one run each; small differences may be chance."
    if result["cost"]:
        longest = int(list(result["cost"])[-1])
        meaning += f" Time and memory: one layer, {MEASURED}, at {longest:,} tokens; slope: exponent of their growth."
    rows = []
    for name in dict.fromkeys([*next(iter(result["cost"].values()), {}), *result["training"]]):
        run = result["training"].get(name)
        row = {"mechanism": name, "options in training": ""}
        if result["training"]:
            row |= {"test accuracy": "", "training": ""}
        if run:
            row["options in training"] = ", ".join(f"{key} {value}" for key, value in run["options"].items())
            row["test accuracy"] = f"{100 * run['test_accuracy']:.1f} %"
            row["training"] = f"{run['seconds']:.0f} s"
        rows.append(row | _cost_cells(result, name))
    columns = dict.fromkeys(column for row in rows for column in row)
    table = markdown_table(rows, right=[*columns][2:])
    return f"# Mechanisms of attention\n\n{made_at(result['made'])}\n{meaning}\n\n{table}\n"


def _cost_cells(result: dict[str, Any], name: str) -> dict[str, str]:
    """Return time and memory at the greatest length, each with its slope."""
    cells = {}
    for what, title, unit, scale in (("seconds", "time", "ms", 1e3), ("bytes", "memory", "MB", 1e-6)):
        if result["cost"]:
            values = series(result, name, what)
            longest = list(result["cost"])[-1]
            cells[title] = f"{scale * values[longest]:,.0f} {unit}" if longest in values else "too much"
            grows = longest in values and len(values) > 1 and 0 not in values.values()  # 0: too little to measure
            cells[f"slope of {title}"] = f"{slope(values):.2f}" if grows else ""
    return cells


if __name__ == "__main__":
    main()
