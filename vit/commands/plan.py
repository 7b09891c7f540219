"""The command ``vit-attention plan``: what a training will take, before it starts and on any machine."""

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from lightning import LightningDataModule

import vit.data
from vit.commands.fit import main as fit
from vit.commands.parser import Parser
from vit.commands.trainer_checks import check_sharded, check_trainer, is_sharded
from vit.commands.training_cli import ViTCLI, fastest_precision
from vit.runs.plan import plan_training
from vit.runs.report import duration
from vit.support.checks import check_positive, check_positive_int, check_positive_share
from vit.support.files import plain_message
from vit.support.interrupts import stoppable
from vit.training.batch_advice import FILLED
from vit.training.loader_batches import pair_of
from vit.training.objective import Objective

UTILISATION = 0.4
IMAGES = 1_000_000  # the time of this many images is printed if the number of images is not known
SECONDS = 5.0  # that the measurement of the data path takes


class PlanCLI(ViTCLI):
    """Parses the options of a training, and builds its model on tensors that have no memory; runs nothing.

    Attributes:
        classes: Number of classes, which spares reading the data; None asks the data module.
    """

    classes: int | None = None

    def before_instantiate_classes(self) -> None:
        """Check the options, and set how model and data are built."""
        config, parser, typed = self.config["fit"], self._parser("fit"), self.typed
        if typed.model is None and not typed.given and typed.start is None:
            where = typed.configs[-1] if typed.configs else "the command line"
            raise ValueError(f"{where} has no model: add --model NAME, or options such as --model.embed_dim 384")
        check_trainer(config.trainer)
        check_sharded(config.trainer.strategy, config.model.init_args, self.trained.objective)
        config.trainer.logger, config.trainer.callbacks = False, None
        parser.add_instantiator(_without_memory, Objective, subclasses=True, prepend=True)
        if self.classes is not None:
            described = self._described(config.data)
            parser.add_instantiator(lambda *_, **__: described, LightningDataModule, subclasses=True, prepend=True)

    def _described(self, data: Any) -> SimpleNamespace:
        """Return what the options of a data module and its class tell a model, without reading the data."""
        cls, given = self.typed.own_data or getattr(vit.data, self.typed.data), dict(data.init_args)
        known = {name: given.get(name) or getattr(cls, name, None) for name in self.trained.objective.from_data}
        known |= {"num_classes": self.classes, "class_names": None, "in_channels": known["in_channels"] or 3}
        if known["image_size"] is None:
            raise ValueError("--classes plans without the images, whose size is not known: add --data.image_size 224")
        return SimpleNamespace(**known, batch_size=given.get("batch_size"))

    def instantiate_trainer(self, **kwargs: Any) -> None:
        """Build none."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


def _without_memory(cls: type[Objective], *args: Any, **kwargs: Any) -> Objective:
    with torch.device("meta"):
        return cls(*args, **kwargs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention plan``: print what a training takes."""
    parser = make_parser()
    options, words = parser.parse_known_args(list(sys.argv[1:] if arguments is None else arguments))
    try:
        for name, remedy in (("memory", "80 is that of an H100"), ("peak", "990e12 is that of an H100 in bfloat16")):
            if getattr(options, name) is not None:
                check_positive(f"--{name}", getattr(options, name), remedy)
        check_positive_share("--utilisation", options.utilisation, "0.4 is usual")
        for name in ("devices", "classes", "images"):
            if getattr(options, name) is not None:
                check_positive_int(f"--{name}", getattr(options, name))
        if options.measure_data and options.peak is None:
            raise ValueError("--measure_data compares with the images that a peak needs: add --peak, such as 990e12")
        with stoppable():
            print("\n".join(planned(options, words)["lines"]))
    except (ValueError, OSError) as error:
        parser.error(" ".join(plain_message(error).split()))


def make_parser() -> Parser:
    """Return the parser of the options that ``fit`` does not have; it leaves the others to ``fit``."""
    parser = Parser(
        prog="vit-attention plan",
        description="Compute what a training will take on each device: operations, memory, the largest batch, the time "
        "of an epoch, and how many images a second the data must deliver. Nothing is trained, and no weights are read.",
        epilog="All options of fit are taken, too: vit-attention fit --help. "
        "Example: vit-attention plan --config cifar10_gpu --devices 8 --memory 80 --peak 990e12",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="devices that train together (default: --trainer.devices, or 1)")
    add("--memory", type=float, metavar="GB", help="memory of a device, in 10^9 bytes; says the largest batch")
    add("--peak", type=float, metavar="FLOP/S", help="operations a second of a device, such as 990e12; says the time")
    add("--utilisation", type=float, default=UTILISATION, metavar="SHARE", help="share of the peak (default: 0.4)")
    add("--images", type=int, metavar="N", help="training images (default: those of the data, where they are counted)")
    add("--classes", type=int, metavar="N", help="number of classes; the data need not be on this machine then")
    add("--measure_data", action="store_true", help="load images for some seconds, and compare with what is needed")
    return parser


def devices_of(typed: int | str | Sequence[int]) -> int:
    """Return the number of devices that ``--trainer.devices`` asks for; 1 for "auto", which is not known beforehand.

    >>> devices_of(2), devices_of("2"), devices_of([0, 1]), devices_of("0,3,5"), devices_of("auto")
    (2, 2, 2, 3, 1)

    Raises:
        ValueError: If all devices of a machine are asked for, whose number is not known either.
    """
    if typed == "auto":
        return 1
    if isinstance(typed, str):
        typed = [part for part in typed.split(",") if part] if "," in typed else int(typed)
    if not isinstance(typed, int):
        return len(typed)
    if typed < 1:
        raise ValueError(f"--trainer.devices {typed} is all devices of a machine: say how many by --devices N")
    return typed


def planned(options: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """Return what a training takes, in numbers and in "lines", for the options of ``plan`` and those of ``fit``."""
    cli = fit(["fit", *words], cli=type("Planned", (PlanCLI,), {"classes": options.classes}))
    trainer, data = cli.config["fit"].trainer, cli.datamodule
    devices = options.devices or devices_of(trainer.devices) * trainer.num_nodes
    on_gpu = trainer.accelerator != "cpu"
    precision = trainer.precision or ("bf16-mixed" if on_gpu else fastest_precision("cpu"))
    strategy = "fsdp2" if is_sharded(trainer.strategy) else "ddp"
    plan = plan_training(cli.model, precision, devices=devices, strategy=strategy, on_gpu=on_gpu)
    batch = getattr(data, "batch_size", None) or 1
    found: dict[str, Any] = {
        "parameters": plan.parameters,
        "training_flop": plan.training_flop,
        "inference_flop": plan.inference_flop,
        "batch": batch,
        "bytes": plan.memory(batch),
        "bytes_per_image": plan.memory(batch) - plan.memory(batch - 1),
    }
    on = f"{devices} {'GPU' if on_gpu else 'CPU'}{f's, {strategy}' if devices > 1 else ''}"
    parts = {"weights": plan.weights, "gradients": plan.gradients, "optimiser": plan.optimizer}
    parts |= {"average": plan.average, "exchange": plan.exchanged, "activations": plan.activations(batch)}
    said = ", ".join(f"{in_bytes(size)} {name}" for name, size in parts.items() if size)
    lines = [
        f"{type(cli.model).__name__}: {plan.parameters:,} parameters, {precision}, {on}",
        f"operations: {plan.training_flop / 1e9:,.4g} GFLOP an image in training, {plan.inference_flop / 1e9:,.4g} in "
        "inference",
        f"memory of a device: {in_bytes(plan.memory(batch))} with batches of {batch:,}: {said}",
    ]
    if options.memory is not None:
        found["largest_batch"] = largest = plan.largest_batch(1e9 * options.memory)
        lines.append(
            f"largest batch: {largest:,} images a device, {devices * largest:,} in all, in {FILLED:.0%} of "
            f"{options.memory:g} GB"
        )
    if options.peak is not None:
        images = options.images or counted(data) or IMAGES
        found["images_per_second"] = speed = devices * options.peak * options.utilisation / plan.training_flop
        found["seconds"] = images / speed
        lines.append(
            f"time at {options.utilisation:.0%} of {options.peak / 1e12:g} TFLOP/s: {images:,} images take "
            f"{in_time(found['seconds'])}, if the data deliver {speed:,.0f} images/s"
        )
        if options.measure_data:
            lines.append(data_line(data, speed))
    return found | {"lines": lines}


def in_time(seconds: float) -> str:
    """Return a time as text.

    >>> in_time(0.0213), in_time(754)
    ('0.021 s', '12 min 34 s')
    """
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def in_bytes(size: float) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> in_bytes(3_249_704), in_bytes(80e9)
    ('3.25 MB', '80 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.3g} {name}"


def counted(data: Any) -> int | None:
    """Return the number of training images that a data module has found before it reads them; None if none is known."""
    splits = getattr(data, "splits", {})
    if "train" not in splits:
        return None
    # Folds are cut from the validation images, too, and leave out the test images.
    if getattr(data, "folds", None) is not None:
        cut = sum(len(splits[stage][0]) for stage in ("train", "val") if stage in splits)
        return round(cut * (1 - 1 / data.folds) * (1 - data.val_fraction))
    stages = ["val", "test"] if set(splits) == {"train"} else ["val"]  # data that name a split hold out no test images
    held_out = [getattr(data, f"{stage}_fraction") for stage in stages if stage not in splits]
    return round(math.prod([len(splits["train"][0]), *(1 - share for share in held_out)]))


def data_line(data: LightningDataModule, needed: float) -> str:
    """Return how many images a second the loader of this machine delivers, and whether that is enough."""
    if not isinstance(data, LightningDataModule):
        raise ValueError("--measure_data reads the images: leave --classes out, and name them by --data.root")
    data.prepare_data()
    data.setup("fit")
    batches, count = _without_end(data.train_dataloader()), 0
    next(batches)  # the first one starts the workers
    start = time.perf_counter()
    while (seconds := time.perf_counter() - start) < SECONDS:
        count += len(pair_of(next(batches))[0])
    speed = count / seconds
    enough = "enough" if speed >= needed else f"{speed / needed:.2g} of what is needed: the data would be the limit"
    return f"data path of this machine: {speed:,.0f} images/s, {enough}"


def _without_end(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader again and again.

    Raises:
        ValueError: If it has none.
    """
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise ValueError("--measure_data: the training loader gives no batch: are there fewer images than a batch?")
