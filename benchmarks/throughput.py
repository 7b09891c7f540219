"""The same Vision Transformer in five libraries: images per second of training and of inference.

Ours, timm, torchvision, vit-pytorch and transformers get the same size, input, optimiser and precision, and run in turn
in one process. Before they are timed, ours and timm must agree to 1e-4 with the same weights, and all but vit-pytorch
must have the same number of parameters. A cell is a device, a size, a mode, a precision, and eager or compiled; it is
written to throughput.json and throughput.md as soon as it is measured, in place of an older one.

    python benchmarks/throughput.py [--sizes 192x6-p4-32 ...] [--modes train inference] [--dtypes fp32 bf16]
        [--compiled] [--rounds 15] [--batch N] [--output benchmarks/results]
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from records import command_line, comparison, provenance, write_cell
from side_by_side import DEVICE, autocast, compared, interleaved, matmul_ceiling, repeated, speed, spread, timed
from throughput_models import EXPLICIT, NUM_CLASSES, OURS, PEERS, SIZES, Size, check_same, counted_flops, parameters
from torch import Tensor, nn

WARM_UP = 3
STEPS = {"cpu": 1, "cuda": 10}  # of one timed call; on a GPU the steps queue up, as they do in training
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FORWARDS = {"train": 3, "inference": 1}  # a backward pass multiplies twice as much as a forward pass

REPORT = """# The same Vision Transformer in five libraries

Eager or through `torch.compile`, float32 or bfloat16 autocast, random images on the device. A training step is forward,
cross-entropy in float32, backward and fused AdamW; compiling and warming up are not timed. The libraries take turns in
one process, and numbers are medians over the rounds, with quartiles.

- Against the best peer: speed as a multiple of that of the fastest other library in the same round.
- TFLOP/s: images per second times the operations in the matrix products of this architecture, the same for all; a
  training step is three forward passes.
- Of the ceiling: TFLOP/s as a share of what the fastest of these products reaches alone.
- Computed: the share of these operations that a library performs in its forward pass.
- Explicit attention: two products and a softmax instead of PyTorch's fused kernel, whose backward pass in bfloat16 is
  slower on CPUs. Ours chooses between them, vit-pytorch is always explicit, and timm and transformers have a switch.
  All of these rows are peers.
- Parameters: vit-pytorch has no bias in queries, keys and values and two norms more; all others have the same.
"""


def training_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Return a function that makes one step of AdamW on a batch."""
    # A low learning rate, or the model would overfit the batch: numbers keep the size they have in training.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model.train()

    def step() -> None:
        with autocast(images.device, dtype):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def inference_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Return a function that makes one forward pass of a batch without gradients."""
    model.eval()

    def step() -> None:
        with torch.inference_mode(), autocast(images.device, dtype):
            model(images)

    return step


MODES = {"train": training_step, "inference": inference_step}


def measure(
    size: Size, mode: str, dtype: torch.dtype, compiled: bool, rounds: int, batch: int, device: torch.device
) -> dict[str, Any]:
    """Return one cell: a row for each library, and the FLOP/s of the matrix products alone."""
    torch.manual_seed(0)
    torch.compiler.reset()  # or the cells before use up the recompilations that torch.compile allows
    images = torch.randn(batch, 3, size.image_size, size.image_size, device=device)
    labels = torch.randint(NUM_CLASSES, (batch,), device=device)
    peers = PEERS | (EXPLICIT if device.type == "cpu" else {})
    models, failed = built(size, OURS | peers)
    check_same(models, size)
    steps, rows = {}, {}
    for name, model in models.items():
        try:
            row = {"parameters": parameters(model), "computed": counted_flops(model, size) / size.forward_flops()}
            model.to(device)
            step = MODES[mode](torch.compile(model) if compiled else model, images, labels, dtype)
            rows[name] = row | {"first_call_seconds": timed(step, device)}
            steps[name] = repeated(step, STEPS[device.type])
        except Exception as error:  # of any kind: the other libraries are still measured
            failed[name] = reason(error)
    ceiling = matmul_ceiling(size.products(batch), dtype, device)
    times = interleaved(steps, rounds, WARM_UP, device)
    for name, row in compared(times, batch * STEPS[device.type], peers).items():
        flops = row["images_per_second"][1] * FORWARDS[mode] * size.forward_flops()
        rows[name] |= row | {"flops_per_second": flops, "of_ceiling": flops / ceiling}
    rows = {name: {"failed": failed[name]} if name in failed else rows[name] for name in OURS | peers}
    return {"batch": batch, "rounds": rounds, "ceiling_flops_per_second": ceiling, "rows": rows}


def built(size: Size, libraries: dict[str, Callable[[Size], nn.Module]]) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the models of the libraries that can be built, and the reason why others cannot."""
    models, failed = {}, {}
    for name, build in libraries.items():
        try:
            models[name] = build(size)
        except Exception as error:  # a library is missing, or has changed
            failed[name] = reason(error)
    return models, failed


def reason(error: Exception) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    reach = f"{cell['ceiling_flops_per_second'] / 1e12:.3g}"
    return f"Batch {cell['batch']}, {cell['rounds']} rounds; matrix products reach {reach} TFLOP/s."


def _readable(library: str, row: dict[str, Any]) -> dict[str, str]:
    if "failed" in row:
        return {"library": library, "images per second": row["failed"]}
    return {
        "library": library,
        "images per second": speed(row["images_per_second"]),
        "against the best peer": spread(row.get("against_best_peer"), ".2f"),
        "TFLOP/s": f"{row['flops_per_second'] / 1e12:.3g}",
        "of the ceiling": f"{row['of_ceiling']:.0%}",
        "computed": f"{row['computed']:.0%}",
        "parameters": f"{row['parameters']:,}",
        "first call": f"{row['first_call_seconds']:.2g} s",
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write cell by cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES, "all"], default=["192x6-p4-32"], metavar="NAME")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--compiled", action="store_true", help="torch.compile every model")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each library (default: 15)")
    parser.add_argument("--batch", type=int, help="images of a batch, instead of the size's own")
    options = parser.parse_args(arguments)
    sizes = [name for name in SIZES if DEVICE.type in SIZES[name].batch] if "all" in options.sizes else options.sizes
    for name in sizes:
        if not options.batch and DEVICE.type not in SIZES[name].batch:
            parser.error(f"{name} has a batch for GPUs only, and there is no GPU: leave it out, or give a --batch")
    made = provenance()
    path = options.output / "throughput.json"
    for name, mode, dtype in itertools.product(sizes, options.modes, options.dtypes):
        batch = options.batch or SIZES[name].batch[DEVICE.type]
        cell = measure(SIZES[name], mode, DTYPES[dtype], options.compiled, options.rounds, batch, DEVICE)
        title = f"{name} {mode} {dtype} {'compiled' if options.compiled else 'eager'} {DEVICE.type}"
        print(f"{title}: done", file=sys.stderr)
        write_cell(path, title, made | cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
