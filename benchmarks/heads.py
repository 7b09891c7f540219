"""What heads, content, positions and projections are worth: one small model, trained with one part changed.

All models have one width and depth, and train for the same steps by the ten-minute recipe, with a Glorot start and all
patches, under the seeds of SEEDS, which were named before any run. Of each model the accuracy on all test images is
kept; on 2,000 of them it is measured again, also at 1.5 times the size. The 16-head model is pruned to fewer heads in
each layer, without further training. Once, single heads one after the other are compared with the joint form, all
models are timed side by side, and the model of 8 heads answers the questions of `python -m vit.analysis`.

A row under a seed is written to heads.json and heads.md as soon as it is done; the same command continues after an
interrupt, with what is missing. A training that fails is one line on stderr, and the others continue.

    python benchmarks/heads.py [--data data/cifar10-jpeg] [--steps 800] [--only "8 heads" ...] [--parallel 2]
        [--config configs/cifar10_quick.yaml] [--output benchmarks/results]
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ablate import ENDLESS
from accuracy import arguments_of, values
from heads_figure import draw_heads
from records import command, command_line, commit, interval, machine, made, plus_minus, write_cell
from torch import Tensor, nn
from training_runs import finished, train

import vit
from vit.analysis import head_importance, prune_heads
from vit.analysis.accuracy import accuracy
from vit.analysis.position_dependence import enlarged
from vit.analysis.questions import QUESTIONS, ask
from vit.analysis.trained_model import read_trained_model
from vit.runs.folders import newest_checkpoint
from vit.support.markdown import markdown_table

SEEDS = (11, 12, 13)
CONFIG = Path(__file__).parents[1] / "configs" / "cifar10_quick.yaml"
# Not every row could leave patches out, or start from a mimetic product of queries and keys.
FOR_ALL = [
    "--model.init",
    "glorot",
    "--model.patch_drop",
    "0",
    "--model.patch_drop_until",
    "1",
    "--model.compile",
    "false",
]
BASE = ["--model.embed_dim", "128", "--model.depth", "6", "--model.num_heads", "8", *FOR_ALL]
REFERENCE, PRUNED = "8 heads", "16 heads"
GROUPS: dict[str, dict[str, list[str]]] = {
    "Number of heads": {
        ("1 head" if count == 1 else f"{count} heads"): ["--model.num_heads", str(count)] for count in (1, 2, 4, 8, 16)
    },
    "Attention without content": {
        "attention by positions alone": ["--model.attention", "positional"],
        "uniform attention": ["--model.attention", "uniform"],
    },
    "Positions": {
        "fixed sine-cosine positions": ["--model.pos_embed", "sincos"],
        "no positions": ["--model.pos_embed", "none"],
    },
    "Projections": {
        "queries, keys and values tied": ["--model.tie_qkv", "true"],
        "keys and values tied": ["--model.tie_kv", "true"],
        "one head of keys and values": ["--model.num_kv_heads", "1"],
    },
    "Logits without their scale": {
        "8 heads, unscaled": ["--model.attention_kwargs.scaled", "false"],
        "1 head, unscaled": ["--model.num_heads", "1", "--model.attention_kwargs.scaled", "false"],
    },
}
ROWS = {name: changed for group in GROUPS.values() for name, changed in group.items()}
STACKED, TIMED, ASKED = "stacked heads", "time of a step", "questions"
EXAMINED = 2000  # test images for what is not in results.json
RANKED = 256  # training images that heads are ranked by
LARGER = 1.5
ROUNDS = 15  # of the times
KEPT = ("test_accuracy", "steps", "seed", "seconds", "images_per_second", "parameters", "precision", "data")

REPORT = """# Heads

One small model (128 channels, 6 blocks) trained with one part changed, for the same number of steps. "Difference":
points of accuracy against the model of 8 heads under the same seed. ± is the sample standard deviation over seeds,
"95 % interval" that of the mean difference by Student's t. "Larger": on 2,000 test images at
1.5 times their size. "Time": of a training step (forward and backward of 64 images in float32), as a multiple of that
of the model of 8 heads; median over interleaved rounds.
"""


def main(arguments: list[str] | None = None) -> None:
    """Train and examine row by row, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG, help="recipe that names the data and the batches")
    parser.add_argument("--data", type=Path, help="class folders of images, instead of the recipe's data")
    parser.add_argument("--steps", type=int, default=800, help="steps of each training (default: 800)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*ROWS, STACKED, TIMED, ASKED],
        metavar="NAME",
        default=[*ROWS, STACKED, TIMED, ASKED],
    )
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time; 2 or more have one thread each")
    options = parser.parse_args(arguments)
    path = options.output / "heads.json"
    if STACKED in options.only and STACKED not in read(path):
        write_cell(path, STACKED, measured(stacked(16)), report)
    pool = ThreadPoolExecutor(options.parallel)
    try:
        failed = run_all(pool, options, path)
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt, waiting trainings never start
    for part, measure in ((TIMED, timed), (ASKED, asked)):
        name = f"{part}, {options.steps} steps"
        if part in options.only and name not in read(path):
            try:
                write_cell(path, name, measured(measure(options)), report)
            except ValueError as error:
                print(f"error: {name}: {error}", file=sys.stderr)
                failed += 1
    draw_heads(read(path), path.with_suffix(".png"))
    if path.exists():
        print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} measurements failed")


def read(path: Path) -> dict[str, Any]:
    """Return the cells that were written before."""
    return json.loads(path.read_text()) if path.exists() else {}


def measured(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell with its origin."""
    return cell | {"machine": machine(), "commit": commit()}


def cell_name(row: str, steps: int, seed: int) -> str:
    """Return the name of a cell."""
    return f"{steps} steps: {row}, seed {seed}"


def experiment(row: str, steps: int, seed: int) -> str:
    """Return the experiment of a training, a folder of its own, since two runs may start at once.

    >>> experiment("queries, keys and values tied", 400, 11)
    'heads_queries_keys_and_values_tied_400_11'
    """
    return f"heads_{re.sub(r'[^a-z0-9]+', '_', row.lower())}_{steps}_{seed}"


def run_all(pool: Executor, options: argparse.Namespace, path: Path) -> int:
    """Train every row under every seed that is missing, examine it, write it; return the number of failures."""
    known, threads, failed, runs = read(path), 1 if options.parallel > 1 else None, 0, {}
    for seed in SEEDS:
        for row in (row for row in ROWS if row in options.only and cell_name(row, options.steps, seed) not in known):
            length = [
                *ENDLESS,
                "--trainer.max_steps",
                str(options.steps),
                "--experiment",
                experiment(row, options.steps, seed),
            ]
            further = [*BASE, *ROWS[row], *length]
            typed = arguments_of(str(options.config), options.data, seed, further)
            runs[pool.submit(train, f"{row}, seed {seed}", typed, threads)] = row, seed
    for (row, seed), results in finished(runs):
        if results is None:
            failed += 1
            continue
        cell = {"row": row, "changed": ROWS[row], "budget": options.steps} | {key: results[key] for key in KEPT}
        cell["command"] = command()
        cell |= examined(newest_checkpoint(experiment(row, options.steps, seed), "last"), prunes=row == PRUNED)
        write_cell(path, cell_name(row, options.steps, seed), measured(cell), report)
    return failed


def examined(checkpoint: Path, prunes: bool) -> dict[str, Any]:
    """Return what is measured of a trained model besides its results.json."""
    subject = read_trained_model(checkpoint, None, EXAMINED)
    images, labels = subject.held_out
    larger = enlarged(images, LARGER, subject.model.patch_embed.patch_stride)
    found = {"examined": len(labels), "accuracy": accuracy(subject.model, images, labels)}
    found["larger"] = accuracy(subject.model, larger, labels)
    if prunes:
        ranking = (subject.trained_on.images[:RANKED], subject.trained_on.labels[:RANKED])
        found["pruned"] = {str(left): pruned(subject.model, ranking, images, labels, left) for left in (8, 4, 2, 1)}
    return found


def pruned(
    model: vit.VisionTransformer, ranking: tuple[Tensor, Tensor], images: Tensor, labels: Tensor, left: int
) -> dict[str, float]:
    """Return accuracy and size of a model with the ``left`` most important heads of each layer."""
    orders = [importance.argsort(descending=True).tolist() for importance in head_importance(model, *ranking)]
    smaller = prune_heads(model, {layer: order[left:] for layer, order in enumerate(orders)})
    return {
        "accuracy": accuracy(smaller, images, labels),
        "parameters": sum(weights.numel() for weights in smaller.parameters()),
    }


@torch.no_grad()
def seconds(function: nn.Module, inputs: Tensor) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    function(inputs)
    return time.perf_counter() - start


class Stacked(nn.Module):
    """Single heads one after the other, each with its own projections; their sum is what the joint form computes."""

    def __init__(self, attention: vit.attention.MultiHeadAttention, heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.bias = attention.proj.bias  # each head adds it

    def forward(self, tokens: Tensor) -> Tensor:
        """Sum the outputs of the heads: (B, N, D) -> (B, N, D)."""
        return sum(head(tokens) for head in self.heads) - (len(self.heads) - 1) * self.bias


def stacked(heads: int) -> dict[str, float]:
    """Compare single heads in a row with the joint form of as many heads: the difference, and the times."""
    torch.manual_seed(SEEDS[0])
    model = vit.VisionTransformer(embed_dim=128, depth=1, num_heads=heads).eval()
    joint = model.blocks[0].attn
    others = ([other for other in range(heads) if other != head] for head in range(heads))
    row = Stacked(joint, (prune_heads(model, {0: removed}).blocks[0].attn for removed in others))
    tokens = torch.randn(64, 65, 128)
    pairs = [(seconds(joint, tokens), seconds(row, tokens)) for _ in range(15)]
    with torch.no_grad():
        exact = tokens.double()
        difference = (row.double()(exact) - joint.double()(exact)).abs().max().item()
    return {
        "heads": heads,
        "largest_difference": difference,
        "seconds_joint": median(first for first, _ in pairs),
        "seconds_stacked": median(second for _, second in pairs),
        "times_as_long": median(second / first for first, second in pairs),
        "command": command(),
    }


def timed(options: argparse.Namespace) -> dict[str, Any]:
    """Compare the time of a training step of all models, interleaved, with that of the reference."""
    checkpoints = {row: newest_checkpoint(experiment(row, options.steps, SEEDS[-1]), "last") for row in ROWS}
    models = {row: vit.load(checkpoint).train() for row, checkpoint in checkpoints.items()}
    embed = models[REFERENCE].patch_embed
    images = torch.randn(64, embed.in_channels, *embed.image_size)
    rounds = [{row: step_seconds(model, images) for row, model in models.items()} for _ in range(ROUNDS + 1)]
    times = {row: median(found[row] / found[REFERENCE] for found in rounds[1:]) for row in models}  # the first warms up
    return {"times": times, "command": command()}


def step_seconds(model: nn.Module, images: Tensor) -> float:
    """Return the time of a forward and a backward pass."""
    start = time.perf_counter()
    model(images).square().mean().backward()
    return time.perf_counter() - start


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """Return the answers of the reference model to the questions of vit.analysis, with pictures beside the results."""
    checkpoint = newest_checkpoint(experiment(REFERENCE, options.steps, SEEDS[0]), "last")
    subject = read_trained_model(checkpoint, None, EXAMINED // 4)
    folder = options.output / "heads"
    folder.mkdir(parents=True, exist_ok=True)
    found = {question: ask(question, subject, folder) for question in QUESTIONS}
    answers = {
        question: {"missing": answer} if isinstance(answer, str) else {"found": answer.found, "control": answer.control}
        for question, answer in found.items()
    }
    return {"answers": answers, "facts": subject.facts(), "command": command()}


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    parts = [REPORT]
    for steps in sorted({cell["budget"] for cell in cells.values() if "budget" in cell}):
        trained = [cell for cell in cells.values() if cell.get("budget") == steps]
        times = times_of(cells, steps)
        parts += [section(f"{title}, {steps:,} steps", rows, trained, times) for title, rows in GROUPS.items()]
        parts.append(pruned_section([cell for cell in trained if "pruned" in cell], steps))
        parts.append(f"{made(trained[-1])}\n")
        parts.append(answers_section(cells.get(f"{ASKED}, {steps} steps"), steps))
    parts.append(stacked_section(cells.get(STACKED)))
    return "\n".join(filter(None, parts))


def times_of(cells: dict[str, Any], steps: int) -> dict[str, float]:
    """Return the time of a step of each row, as a multiple of the reference's; nothing where it was not measured."""
    return cells.get(f"{TIMED}, {steps} steps", {"times": {}})["times"]


def trained_rows(names: Iterable[str], trained: list[dict[str, Any]], times: dict[str, float]) -> list[dict[str, str]]:
    """Return what was measured of models with these names, the reference first; nothing of those not trained."""
    reference = {cell["seed"]: cell for cell in trained if cell["row"] == REFERENCE}
    rows = []
    for name in dict.fromkeys([REFERENCE, *names] if REFERENCE not in names else names):
        cells = [cell | {"points": points(cell, reference)} for cell in trained if cell["row"] == name]
        if not cells:
            continue
        rows.append(
            {
                "model": name,
                "test accuracy, %": plus_minus(values(cells, "test_accuracy", 100), ".2f"),
                "difference": "" if name == REFERENCE else plus_minus(values(cells, "points"), "+.2f"),
                "95 % interval": "" if name == REFERENCE else interval(values(cells, "points")),
                "larger, %": plus_minus(values(cells, "larger", 100), ".2f"),
                "parameters": f"{cells[0]['parameters']:,}",
                "time": f"{times[name]:.2f}" if name in times else "",
                "changed by": f"`{' '.join(cells[0]['changed'])}`",
            }
        )
    return rows


def section(title: str, names: Iterable[str], trained: list[dict[str, Any]], times: dict[str, float]) -> str:
    """Return the rows of a group as Markdown; "" if none of it was trained."""
    rows = trained_rows(names, trained, times)
    if not any(row["model"] in names for row in rows):
        return ""
    return f"## {title}\n\n{markdown_table(rows, right=list(rows[0])[1:-1])}\n"


def points(cell: dict[str, Any], reference: dict[int, dict[str, Any]]) -> float | None:
    """Return the difference in accuracy from the reference under the same seed, in points."""
    beside = reference.get(cell["seed"])
    return None if beside is None else 100 * (cell["test_accuracy"] - beside["test_accuracy"])


def pruned_rows(cells: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return accuracy and size of the pruned models, over seeds."""
    rows = []
    for left in ("16", *cells[0]["pruned"]):
        of_seeds = [cell if left == "16" else cell["pruned"][left] for cell in cells]
        rows.append(
            {
                "heads left in each layer": left,
                "accuracy, %": plus_minus(values(of_seeds, "accuracy", 100), ".2f"),
                "parameters": f"{of_seeds[0]['parameters']:,}",
            }
        )
    return rows


def margin(share: float, count: int) -> float:
    """Return two standard errors of the difference between two shares like this one, each of ``count`` images.

    The share is moved towards one half (Agresti and Coull 1998), so that a share of 0 or 1 has an error, too.

    >>> round(margin(0.9, 400), 3), round(margin(1.0, 400), 3)
    (0.043, 0.01)
    """
    moved = (share * count + 2) / (count + 4)
    return 2 * (2 * moved * (1 - moved) / (count + 4)) ** 0.5


def pruned_note(cells: list[dict[str, Any]]) -> str:
    """Return what the accuracies of pruned models are of, and which of their differences may be chance."""
    error = 100 * margin(cells[0]["accuracy"], cells[0]["examined"])
    return f"On {cells[0]['examined']:,} test images: differences of less than {error:.1f} points may be chance."


def halved_sentence(cells: list[dict[str, Any]]) -> str:
    """Return what is left of the model with the most heads once half of them are pruned."""
    halved = [cell["pruned"]["8"] for cell in cells]
    return (
        f"Pruned from 16 heads in each layer to 8, the model keeps {halved[0]['parameters']:,} of "
        f"{cells[0]['parameters']:,} parameters, and its accuracy falls from "
        f"{plus_minus(values(cells, 'accuracy', 100), '.1f')} % to "
        f"{plus_minus(values(halved, 'accuracy', 100), '.1f')} %."
    )


def pruned_section(cells: list[dict[str, Any]], steps: int) -> str:
    """Return the pruned models as Markdown; "" if none was trained."""
    if not cells:
        return ""
    rows = pruned_rows(cells)
    table = markdown_table(rows, right=list(rows[0]))
    return f"## {PRUNED}, pruned without further training, {steps:,} steps\n\n{table}\n\n{pruned_note(cells)}\n"


def answers_section(cell: dict[str, Any] | None, steps: int) -> str:
    """Return the answers to the questions as Markdown; "" without them."""
    if cell is None:
        return ""
    lines = [f"## What the model of {REFERENCE} says, {steps:,} steps\n", *cell["facts"], ""]
    for question, answer in cell["answers"].items():
        lines.append(f"- **{question}** {answer.get('found') or 'Not measured: ' + answer['missing']}")
        if answer.get("control"):
            lines.append(f"  Control: {answer['control']}")
    return "\n".join(lines) + "\n"


def stacked_section(cell: dict[str, Any] | None) -> str:
    """Return the comparison of stacked and joint heads in a sentence; "" without it."""
    if cell is None:
        return ""
    return (
        f"## Single heads one after the other\n\n{cell['heads']} single heads in a row compute what the joint form "
        f"computes (largest difference {cell['largest_difference']:.0e} in float64), and take "
        f"{cell['times_as_long']:.1f} times as long (inference, 64 x 65 tokens of 128 channels, float32).\n\n"
        f"{made(cell)}\n"
    )


if __name__ == "__main__":
    main()
