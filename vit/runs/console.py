"""The lines that a run prints: its header, a line per validation, its results, and how to resume."""

import os
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.utilities import rank_zero_only

from vit.attention.mechanisms.local import NeighborhoodAttention, WindowAttention
from vit.data.image_set import ImageSet
from vit.runs.command_prefix import command_prefix
from vit.runs.measurements import Measurements
from vit.runs.parts import part_in_words
from vit.runs.results import count_parameters, device_name, in_terminal, objective_of, policy_from, read_results
from vit.runs.splits import LoadedImages, count_images, is_users_own, splits_of
from vit.support.printable import printable
from vit.training.batch_advice import advise_batch, measure_memory
from vit.training.description import Score
from vit.training.muon import MuonAdamW
from vit.training.sharding import own_part

FEW = 50  # validation images, below which a line warns


@rank_zero_only
def print_header(facts: dict[str, Any], folder: Path, trainer: Trainer, pl_module: LightningModule) -> None:
    """Print the data, the model, the device, the length and the folder of a run, and warnings about small data."""
    sets, parts = splits_of(trainer), facts.get("parts", {})
    of = {name: f" of {part['of']:,}" for name, part in parts.items()}
    names = [name for name in ("train", "val", "test") if name in sets]
    sizes = ", ".join(f"{_counted(sets[name])}{of.get(name, '')} {name}" for name in names)
    print(
        f"{printable(facts['data'])}: {sizes} images; {count_parameters(pl_module):,} parameters; "
        f"{trainer.precision} on {device_name(pl_module.device)}; {_length(trainer)}; {printable(str(folder))}",
        flush=True,
    )
    for line in getattr(trainer.datamodule, "made_worse", []):
        print(line)
    if left_out := getattr(trainer.datamodule, "left_out", 0):
        print(f"each epoch leaves out {left_out} training images, others each time: they fill no batch")
    validated = count_images(sets["val"]) if "val" in sets else None
    if validated and validated < FEW:
        print(
            f"only {validated} validation images: each is {100 / validated:.1f} % of val_{pl_module.monitor.name}, "
            "which chooses best.ckpt; a larger --data.val_fraction makes the choice surer"
        )

    for line in dict.fromkeys(_wide_windows(pl_module)):
        print(line)


def _counted(images: ImageSet | LoadedImages) -> str:
    """Return the number of images of a split in words."""
    count = count_images(images)
    return "an unknown number of" if count is None else f"{count:,}"


def _wide_windows(pl_module: LightningModule) -> Iterator[str]:
    """Yield a line for each local attention whose window covers the whole grid, so that it is not local."""
    encoder = None if pl_module.encoder is None else pl_module.get_submodule(pl_module.encoder)
    for module in pl_module.modules() if encoder is not None else ():
        name = {WindowAttention: "window", NeighborhoodAttention: "kernel"}.get(type(module))
        rows, columns = encoder.patch_embed.grid_size
        if name is not None and (side := getattr(module, name)) >= max(rows, columns):
            yield (
                f"attention {name} {side} covers the whole grid of {rows} x {columns} patches, as softmax attention "
                f"does: a smaller --model.attention_kwargs.{name}, or smaller patches, makes it local"
            )


def _length(trainer: Trainer) -> str:
    """Return the limits of a training; the first one that is reached ends it."""
    limits = {"epochs": trainer.max_epochs, "steps": trainer.max_steps}
    named = [f"{limit:,} {name}" for name, limit in limits.items() if limit is not None and limit > 0]
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer) and callback._duration]
    named += [str(timedelta(seconds=timer._duration)) for timer in timers]
    return " or ".join(named) or "no end"


@rank_zero_only
def print_plan(trainer: Trainer, pl_module: LightningModule, flop: int) -> None:
    """Print what is known before the first step: its operations, and the bytes that do not depend on the batch.

    Args:
        trainer: The trainer.
        pl_module: The objective.
        flop: Operations of a training step per image.
    """
    parameters = [own_part(parameter) for parameter in pl_module.parameters()]
    kept = sum(parameter.nbytes * (1 + parameter.requires_grad) for parameter in parameters)
    optimizer, named = next(iter(trainer.optimizers), None), "weights and gradients"
    if isinstance(optimizer, torch.optim.AdamW | MuonAdamW):
        # AdamW keeps two averages of a parameter, Muon one.
        groups = optimizer.param_groups
        kept += sum(
            own_part(each).nbytes * (2 - group.get("muon", False)) for group in groups for each in group["params"]
        )
        named = "weights, gradients and optimiser"
    print(
        f"plan: {flop / 1e9:.3g} GFLOP an image in training; {kept / 1e6:,.3g} MB of {named} (activations, largest "
        "batch and time: vit-attention plan)",
        flush=True,
    )


@rank_zero_only
def print_memory(trainer: Trainer, pl_module: LightningModule, batch_size: int) -> None:
    """Print which batches would fit into the memory, judged by what the first step took."""
    device, data = pl_module.device, trainer.datamodule
    if device.type not in ("cpu", "cuda") or os.name != "posix" or is_users_own(data):
        return
    activations, stays, total = measure_memory(pl_module, trainer.optimizers, device)
    if device.type == "cuda" and pl_module.hparams.get("patch_drop_until", 1.0) < 1:
        activations = round(activations / (1 - pl_module.drop_rate))  # later steps drop no patches
    line = advise_batch(
        *(activations, stays, total),
        batch_size=batch_size,
        most=len(data.sets["train"].labels) // trainer.world_size,
        lr=pl_module.hparams.lr,
        has_own_memory=device.type == "cuda",
    )
    if line:
        print(line, flush=True)


@rank_zero_only
def print_validation(measurements: Measurements, monitor: Score) -> None:
    """Print the last validation, with the training loss and the speed."""
    train, val = measurements.history["train"], measurements.history["val"][-1]
    loss = f"train_loss {train[-1]['loss']:.3f}  " if train else ""
    print(
        f"epoch {val['epoch']:.2f}  step {val['step']:,}  {loss}val_loss {val['loss']:.3f}  "
        f"val_{monitor.name} {in_terminal(monitor, val[monitor.name])}  {measurements.images_per_second:,.0f} images/s",
        flush=True,
    )


@rank_zero_only
def print_policy(trainer: Trainer) -> None:
    """Print that the policy of augmentation begins with this epoch, if it does."""
    late = policy_from(trainer)
    if late and trainer.current_epoch == late:
        print(f"{trainer.datamodule.augmentation['policy']} begins after {late} epochs", flush=True)


@rank_zero_only
def print_stop(trainer: Trainer) -> None:
    """Print why a training was stopped before its end, if an early stopping stopped it now, not before a resume."""
    for callback in trainer.callbacks:
        is_now = trainer.should_stop and getattr(callback, "stopped_epoch", -1) >= trainer.current_epoch - 1
        if isinstance(callback, EarlyStopping) and is_now and callback.stopping_reason_message:
            reason = callback.stopping_reason_message.removesuffix(" Signaling Trainer to stop.")
            print(f"stopped early: {reason[0].lower()}{reason[1:]}", flush=True)


@rank_zero_only
def print_resume(folder: Path) -> None:
    """Print how to resume a run that was stopped."""
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists():
        print(f"results so far: {printable(str(folder / 'results.json'))}")
        print(f"resume with: {command_prefix()} fit --ckpt_path {printable(shlex.quote(str(last)))}", flush=True)
    else:
        print("stopped before the first checkpoint: start again", flush=True)


@rank_zero_only
def print_results(folder: Path) -> None:
    """Print the scores of a run or an evaluation, and where its report is."""
    results = read_results(folder)
    objective = objective_of(results)
    for split in ("val", "test"):
        name, part = f"{split}_{objective.monitor.name}", results.get("parts", {}).get(split)
        if results.get(name) is not None:
            of_part = f" ({part_in_words(part, split)})" if part else ""
            print(f"{name}: {in_terminal(objective.monitor, results[name])}{of_part}")
    for line in objective.result_lines(results):
        print(line)
    if "diverged" in results:
        print(f"warning: {results['diverged']}")
    place = printable(str(folder))
    print(f"run folder: {place}")
    print(f"  {place}/report.html, with all scores and pictures; the numbers are in {place}/results.json")
