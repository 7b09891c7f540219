"""Memory of a training by vit-attention plan, beside what PyTorch's profiler measures; and the steps of docs/scale.md.

"memory": three sizes of model train for two steps on invented images of 32 x 32 pixels on the CPU, with and without
checkpointing, in float32 and bfloat16 autocast, through the Trainer. The profiler counts what is allocated and freed,
which the plan does not look at. PyTorch's MemTracker runs the same steps in a plain loop. "steps": the plan of each
step of docs/scale.md, by its command; nothing is measured.

    python benchmarks/plan.py [--parts memory steps] [--output benchmarks/results]
"""

import itertools
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from records import command_line, made_at, origin, write_cell
from scale import allocated
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from vit.commands.plan import in_bytes, in_time, make_parser, planned
from vit.objectives import ViTClassifier
from vit.runs.plan import plan_training
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, GREEN, ORANGE, PINK, plot_style

SIZES = {"64x2": (64, 2, 2), "128x3": (128, 3, 4), "256x4": (256, 4, 4)}
BATCH, STEPS = 16, 2
IMAGENET = "--data ImageFolder --data.root imagenet --data.image_size 224 --data.batch_size 128 --classes 1000"
IMAGENET += " --images 1281167 --model.patch_size 16"
H100 = "--memory 80 --peak 990e12"
SMALL = "--model.embed_dim 384 --model.depth 12 --model.num_heads 6"
BASE = "--model.embed_dim 768 --model.depth 12 --model.num_heads 12"
LARGE = "--model.embed_dim 1024 --model.depth 24 --model.num_heads 16"
HUGE = "--model.embed_dim 1280 --model.depth 32 --model.num_heads 16 --model.patch_size 14"
LADDER = {
    "a laptop: digits": "--config digits --trainer.accelerator cpu --memory 16 --images 1295",
    "one GPU: CIFAR-10": f"--config cifar10_gpu --devices 1 {H100} --images 48000",
    "eight GPUs: ImageNet, ViT-B/16": f"{IMAGENET} {BASE} --devices 8 {H100}",
    "512 GPUs: a billion images, ViT-H/14": (
        f"{IMAGENET} {HUGE} --model.grad_checkpointing true --trainer.strategy fsdp2 --images 1000000000 "
        f"--devices 512 {H100}"
    ),
}
GROWTH = {
    "parameters": {
        "ViT-Ti/16": "--model.embed_dim 192 --model.depth 12 --model.num_heads 3",
        "ViT-S/16": SMALL,
        "ViT-B/16": BASE,
        "ViT-L/16": LARGE,
    },
    "tokens": {f"{side} pixels": f"{SMALL} --data.image_size {side}" for side in (112, 224, 448)},
    "devices": {
        f"{strategy} {count}": f"{LARGE} --data.batch_size 16 --trainer.strategy {strategy} --devices {count}"
        for strategy, count in itertools.product(("ddp", "fsdp2"), (1, 8, 64, 512))
    },
}
REPORT = f"""# What a training will take

## Memory, planned and measured

ViTClassifier on images of 32 x 32 pixels in patches of 4, batches of {BATCH}, AdamW, on a CPU. Planned by
`vit.runs.plan`, which runs a step without memory; measured by PyTorch's profiler over {STEPS} steps of the Trainer: the
most that tensors take at one time. MemTracker is PyTorch's own counter: it runs the steps, and needs their memory. Both
differences are to the measured memory.
"""


def measured(arguments: dict[str, Any], precision: str) -> int:
    """Return the most bytes that the tensors of a training take at one time, the model included."""

    def train() -> None:
        torch.manual_seed(0)
        images = torch.randint(256, (BATCH * STEPS, 3, 32, 32), dtype=torch.uint8)
        loader = DataLoader(TensorDataset(images, torch.zeros(len(images), dtype=torch.long)), BATCH)
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        options |= {"enable_model_summary": False, "max_epochs": 1, "accelerator": "cpu", "precision": precision}
        Trainer(**options).fit(ViTClassifier(**arguments), loader)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return allocated(train)


def tracked(arguments: dict[str, Any], precision: str) -> int:
    """Return the most bytes that PyTorch's MemTracker counts over the same steps in a plain loop."""
    torch.manual_seed(0)
    model = ViTClassifier(**arguments).train()
    images, labels = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.long)
    optimizer, tracker = torch.optim.AdamW(model.parameters()), MemTracker()
    tracker.track_external(model, optimizer, images, labels)
    with warnings.catch_warnings(), tracker:
        warnings.simplefilter("ignore")
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def memory_rows() -> Iterator[dict[str, Any]]:
    """Yield the bytes of each size, with and without checkpointing, in each precision: planned, measured, tracked."""
    for (name, (width, depth, heads)), checkpointing, precision in itertools.product(
        SIZES.items(), (False, True), ("32-true", "bf16-mixed")
    ):
        arguments = {"patch_size": 4, "embed_dim": width, "depth": depth, "num_heads": heads}
        arguments |= {"grad_checkpointing": checkpointing}
        with torch.device("meta"):
            module = ViTClassifier(**arguments)
        plan = plan_training(module, precision, on_gpu=False)
        setting = {"size": name, "checkpointing": checkpointing, "precision": precision}
        found = {"planned": plan.memory(BATCH), "measured": measured(arguments, precision)}
        yield setting | found | {"tracked": tracked(arguments, precision)}


def step(command: str) -> dict[str, Any]:
    """Return what ``vit-attention plan`` computes for its options, and the lines that it prints."""
    return {"options": command} | planned(*make_parser().parse_known_args(shlex.split(command)))


def memory_table(cell: dict[str, Any]) -> str:
    """Return planned and measured memory as a Markdown table."""
    rows = [
        {
            "width x depth": row["size"],
            "checkpointing": "yes" if row["checkpointing"] else "no",
            "precision": row["precision"],
            "planned, MB": f"{row['planned'] / 1e6:,.1f}",
            "measured, MB": f"{row['measured'] / 1e6:,.1f}",
            "difference, %": f"{100 * (row['planned'] / row['measured'] - 1):+.1f}",
            "MemTracker, MB": f"{row['tracked'] / 1e6:,.1f}",
            "its difference, %": f"{100 * (row['tracked'] / row['measured'] - 1):+.1f}",
        }
        for row in cell["rows"]
    ]
    return markdown_table(rows, right={*[*rows[0]][3:]})


def steps_table(cell: dict[str, Any]) -> str:
    """Return what is computed for the steps of docs/scale.md as a Markdown table."""
    rows = [
        {
            "step": name,
            "parameters": f"{row['parameters']:,}",
            "training GFLOP per image": f"{row['training_flop'] / 1e9:,.4g}",
            "memory per device": f"{in_bytes(row['bytes'])} at {row['batch']}",
            "largest batch": f"{row['largest_batch']:,}",
            "images/s": f"{row['images_per_second']:,.0f}" if "images_per_second" in row else "not computed",
            "time per epoch": in_time(row["seconds"]) if "seconds" in row else "not computed",
        }
        for name, row in cell["ladder"].items()
    ]
    return markdown_table(rows, right={*[*rows[0]][1:]})


def report(results: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    parts = [REPORT]
    if "memory" in results:
        parts.append(f"{memory_table(results['memory'])}\n\n{made_at(results['memory']['made'])}\n")
    if "steps" in results:
        parts.append(f"## The steps of docs/scale.md\n\nComputed, not measured.\n\n{steps_table(results['steps'])}\n")
        for row in results["steps"]["ladder"].values():
            said = "\n".join(row["lines"])
            parts.append(f"```\nvit-attention plan {row['options']}\n\n{said}\n```\n")
        parts.append(f"![Operations and memory of an image](plan_growth.png)\n\n{made_at(results['steps']['made'])}\n")
    return "\n".join(parts)


@plot_style
def draw_growth(growth: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw operations and memory of an image over parameters and over tokens, and memory of a device over devices."""
    figure = Figure(figsize=(7.4, 8.8))
    grid = figure.add_gridspec(3, 2)
    of_image = [figure.add_subplot(grid[row, column]) for row in (0, 1) for column in (0, 1)]
    over_devices = figure.add_subplot(grid[2, :])
    parameters = [row["parameters"] for row in growth["parameters"].values()]
    models = [
        f"{name.removeprefix('ViT-')}\n{count / 1e6:.0f} M"
        for name, count in zip(growth["parameters"], parameters, strict=True)
    ]
    tokens = [(int(name.split()[0]) // 16) ** 2 + 1 for name in growth["tokens"]]
    images = [f"{count:,}\n{name}" for name, count in zip(growth["tokens"], tokens, strict=True)]
    columns = (
        ("parameters", parameters, models, "parameters of a ViT"),
        ("tokens", tokens, images, "tokens of an image of a ViT-S/16"),
    )
    costs = (
        ("training_flop", 1e9, "operations in training\nof one image, GFLOP", BLUE),
        ("bytes_per_image", 1e6, "memory of activations\nof one image, MB", ORANGE),
    )
    for axes, (cost, column) in zip(of_image, itertools.product(costs, columns), strict=True):
        (key, unit, cost_label, color), (part, places, names, label) = cost, column
        heights = [row[key] / unit for row in growth[part].values()]
        axes.plot(places, heights, "o-", color=color)
        for place, height in zip(places, heights, strict=True):
            axes.annotate(f"{height:,.3g}", (place, height), xytext=(5, -11), textcoords="offset points")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel=cost_label)
        axes.margins(x=0.25, y=0.15)  # room for the numbers beside the last point
        axes.set_xticks(places, names)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.minorticks_off()
    largest = max(row["bytes"] for row in growth["devices"].values()) / 1e9
    for strategy, color, mark in (("ddp", GREEN, "o-"), ("fsdp2", PINK, "s--")):
        sizes = {int(name.split()[1]): row["bytes"] for name, row in growth["devices"].items() if strategy in name}
        heights = [size / 1e9 for size in sizes.values()]
        over_devices.plot([*sizes], heights, mark, color=color, label=strategy.upper())
    over_devices.set(xscale="log", ylim=(0, 1.15 * largest), xlabel="devices, each with 16 images of a ViT-L/16")
    over_devices.set_ylabel("memory of a device, GB")
    over_devices.set_xticks([*sizes], [*map(str, sizes)])
    over_devices.minorticks_off()
    over_devices.legend(loc="lower left")
    for axes, title in zip(
        (*of_image[:2], over_devices), ("A larger model", "A larger image", "More devices"), strict=True
    ):
        axes.set_title(title)
    figure.suptitle("Computed by vit-attention plan, in bf16-mixed")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Measure, plan and write both parts, and print them."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", nargs="+", choices=("memory", "steps"), default=["memory", "steps"])
    options = parser.parse_args(arguments)
    path = options.output / "plan.json"
    if "memory" in options.parts:
        write_cell(path, "memory", {"made": origin(), "rows": [*memory_rows()]}, report)
    if "steps" in options.parts:
        growth = {
            part: {name: step(f"{IMAGENET} {typed}") for name, typed in of.items()} for part, of in GROWTH.items()
        }
        ladder = {name: step(command) for name, command in LADDER.items()}
        write_cell(path, "steps", {"made": origin(), "ladder": ladder, "growth": growth}, report)
        draw_growth(growth, options.output / "plan_growth.png")
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
