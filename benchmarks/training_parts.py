"""Time of a step of the parts of the training that timm has as well: moving average, AdamW, Muon.

Both libraries step on copies of one model of 192 channels and 6 blocks, with the same gradients. All candidates take
turns; a number is the median of the rounds.

    python benchmarks/training_parts.py [--rounds 21] [--output benchmarks/results]
"""

import copy
import statistics
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from records import command_line, made_at, origin, write_results
from side_by_side import interleaved
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

import vit
from vit.support.markdown import markdown_table
from vit.training.ema import EMA
from vit.training.optimizer import Optimizer, make_optimizer

RATES = {"lr": 1e-4, "weight_decay": 0.05}


def average_of_ours(model: vit.VisionTransformer) -> Callable[[], None]:
    """Return a call that adds the weights to the average of ``EMA``."""
    average, steps = EMA(0.999), count(1)
    average.on_fit_start(SimpleNamespace(global_step=0), model)
    return lambda: average.on_train_batch_end(SimpleNamespace(global_step=next(steps)), model)


def average_of_timm(model: vit.VisionTransformer) -> Callable[[], None]:
    """Return a call that adds the weights to the average of ``ModelEmaV3``."""
    average = ModelEmaV3(model, decay=0.999)
    return lambda: average.update(model)


def optimizer_of_ours(name: Optimizer) -> Callable[[vit.VisionTransformer], Callable[[], object]]:
    """Return what makes our optimiser of a model, as a call of its step."""
    return lambda model: make_optimizer(name, model, **RATES, betas=(0.9, 0.99)).step


def optimizer_of_timm(name: str) -> Callable[[vit.VisionTransformer], Callable[[], object]]:
    """Return what makes timm's optimiser of a model, as a call of its step."""
    return lambda model: create_optimizer_v2(model, name, **RATES).step


PARTS = {
    "moving average": (average_of_ours, average_of_timm),
    "AdamW": (optimizer_of_ours("adamw"), optimizer_of_timm("adamw")),
    "Muon": (optimizer_of_ours("muon"), optimizer_of_timm("muon")),
}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of a step of each part, of ours and of timm's."""
    model = vit.VisionTransformer(embed_dim=192, depth=6, num_heads=6)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    steps = {}
    for part, makers in PARTS.items():
        for library, make in zip(("vit", "timm"), makers, strict=True):
            copied = copy.deepcopy(model)
            for parameter, own in zip(copied.parameters(), model.parameters(), strict=True):
                parameter.grad = own.grad
            steps[f"{part}, {library}"] = make(copied)
    times = interleaved(steps, rounds, 2, torch.device("cpu"))
    return {
        part: {library: statistics.median(times[f"{part}, {library}"]) for library in ("vit", "timm")} for part in PARTS
    }


def table(results: dict[str, Any]) -> str:
    """Return the milliseconds of a step as a Markdown table."""
    rows = [
        {"one step of": part} | {f"{library}, ms": f"{1e3 * seconds:.1f}" for library, seconds in cell.items()}
        for part, cell in results["parts"].items()
    ]
    return markdown_table(rows, right={"vit, ms", "timm, ms"})


def report(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    return f"# Parts of the training, beside timm's\n\n{table(results)}\n\n{made_at(results['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="rounds in which the candidates take turns")
    options = parser.parse_args(arguments)
    results = {"made": origin(), "parts": measure(options.rounds)}
    path = options.output / "training_parts.json"
    write_results(path, results, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
