"""Checks of the trainer's options before anything is built: Lightning's own come late, or not at all."""

import os
import re
import time
from datetime import timedelta
from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.utilities import rank_zero_only

from vit.support.checks import check_non_negative, check_positive_int
from vit.training.objective import Objective

WAIT = 20  # seconds that other processes wait until the first one has printed an error
INSTEAD = {  # of Lightning's callbacks that would change a training without a note in its record
    "BackboneFinetuning": "--model.freeze keeps blocks as they are",
    "BatchSizeFinder": "--data.batch_size is the one that config.yaml notes",
    "EMAWeightAveraging": "--model.ema_decay averages the weights",
    "StochasticWeightAveraging": "--model.ema_decay averages the weights",
    "Timer": "--trainer.max_time 00:01:00:00 ends the training after an hour",
    "WeightAveraging": "--model.ema_decay averages the weights",
}
LARGEST_SEED = 2**32 - 1
BYTES_IN_TRAINING, BYTES_IN_USE = 16, 4  # a parameter in float32 with its gradient and two averages; or alone
SHARDING = ("fsdp2", "FullySharded", "ModelParallelStrategy")
MANY = 10**9  # parameters from which on building a model takes so long that a line says so


def check_seed(seed: Any) -> None:
    """Check that a seed is a whole number in the range of seeds.

    >>> check_seed(-5)
    Traceback (most recent call last):
    ValueError: seed_everything (-5) must be a whole number from 0 to 4294967295, such as 0

    Raises:
        ValueError: If it is not.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed_everything ({seed}) must be a whole number from 0 to {LARGEST_SEED}, such as 0")


# The option that limits the images of each evaluation.
LIMITS = {"validate": "limit_val_batches", "test": "limit_test_batches", "predict": "limit_predict_batches"}


def check_limit(subcommand: str, config: dict[str, Any]) -> None:
    """Check that an evaluation evaluates something.

    Raises:
        ValueError: If its limit leaves no images.
    """
    limit = LIMITS[subcommand]
    if config[limit] == 0:
        raise ValueError(f"{limit} (0) leaves {subcommand} nothing to do: set it to 1 or more, or leave it out")


def check_devices(config: dict[str, Any]) -> None:
    """Check that there is a GPU if one is asked for, and that a CPU has a core for each process.

    Lightning checks the number of GPUs itself.

    Raises:
        ValueError: If there is no GPU, or the CPU has fewer cores.
    """
    if config["accelerator"] in ("gpu", "cuda", "mps") and not torch.accelerator.is_available():
        raise ValueError(
            f"accelerator {config['accelerator']}: PyTorch finds no GPU on this machine; take --trainer.accelerator cpu"
        )
    devices, cores = str(config["devices"]), os.cpu_count() or 1
    is_cpu = config["accelerator"] == "cpu" or (config["accelerator"] == "auto" and not torch.cuda.is_available())
    if is_cpu and devices.isdecimal() and int(devices) > cores and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            f"devices ({devices}) are more than this CPU has cores ({cores}): set --trainer.devices {cores} or fewer"
        )


def check_trainer(config: dict[str, Any]) -> None:
    """Check the options of a trainer, such as numbers that Lightning divides by, or a length that trains nothing.

    Raises:
        ValueError: If one is wrong.
    """
    check_positive_int("accumulate_grad_batches", config["accumulate_grad_batches"], "1 steps after each batch")
    if config["check_val_every_n_epoch"] is not None:
        check_positive_int("check_val_every_n_epoch", config["check_val_every_n_epoch"], "1 validates each epoch")
    for name, remedy in (("gradient_clip_val", "null does not clip"), ("log_every_n_steps", "20 is the default")):
        if config[name] is not None:
            check_non_negative(name, config[name], remedy)
    if config["val_check_interval"] == 0:
        raise ValueError(
            "val_check_interval (0) must be above 0: 1.0 validates at the end of an epoch, and --data.val_fraction 0 "
            "trains without validation"
        )
    if config["barebones"]:
        raise ValueError("barebones leaves out checkpoints, scores and log, which are what a run writes: leave it out")
    if re.match(r"ddp_(spawn|fork|notebook)", str(config.get("strategy"))):
        raise ValueError(
            f"strategy {config['strategy']} trains in processes that end with their record: take ddp, which starts "
            "as many"
        )
    _check_length(config)


def _check_length(config: dict[str, Any]) -> None:
    for name in ("max_epochs", "max_steps", "limit_train_batches"):
        if config[name] == 0:
            raise ValueError(
                f"{name} (0) would train nothing: set it to 1 or more; to measure a model as it is, run test"
            )
    time = _duration(config["max_time"])
    if time is not None and time <= timedelta():
        raise ValueError(f"max_time ({config['max_time']}) would train nothing: 00:00:10:00 is ten minutes")
    for unit in ("steps", "epochs"):
        least, most = config[f"min_{unit}"], config[f"max_{unit}"]
        if least is not None and most is not None and 0 <= most < least:
            raise ValueError(f"min_{unit} ({least}) is more than max_{unit} ({most}): leave one of them out")


def _duration(time: str | timedelta | dict[str, int] | None) -> timedelta | None:
    """Return the time that ``max_time`` stands for; None without one, and for a text that Lightning refuses."""
    if isinstance(time, str):
        parts = time.split(":")
        if time.strip() == "0":
            return timedelta()
        if len(parts) != 4 or not all(part.strip().isdecimal() for part in parts):
            return None
        days, hours, minutes, seconds = map(int, parts)
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return timedelta(**time) if isinstance(time, dict) else time


def check_keeps_best(saves: bool, validates: bool) -> None:
    """Check that a training keeps the best weights, which are to be tested.

    Raises:
        ValueError: If it saves no checkpoint, or does not validate.
    """
    if not saves:
        raise ValueError("test_weights is best, and enable_checkpointing false keeps none: set test_weights to last")
    if not validates:
        raise ValueError("test_weights is best, and no validation chooses the best weights: set it to last")


def is_sharded(strategy: Any) -> bool:
    """Return whether a strategy that is asked for, by a name or a class, shards the weights."""
    return _name_of(strategy) in SHARDING


def _name_of(strategy: Any) -> str:
    return str(getattr(strategy, "class_path", strategy)).rpartition(".")[2]


def check_sharded(strategy: Any, settings: dict[str, Any], objective: type[Objective] | None = None) -> None:
    """Check, before the processes start, that a training works on shards of the weights.

    Args:
        strategy: The strategy that is asked for.
        settings: Hyper-parameters of the objective.
        objective: The class of the objective; None checks the hyper-parameters alone.

    Raises:
        ValueError: If it shards the weights and needs them whole.
    """
    if not is_sharded(strategy):
        return
    remedies = {"ema_decay": "null", "optimizer": "adamw"}
    whole = {name for name in remedies if settings.get(name) not in (None, remedies[name])}
    is_refused = objective is not None and not objective.is_shardable
    if (whole or is_refused) and rank_zero_only.rank:
        time.sleep(WAIT)  # the first process prints the error for all, and torchrun ends all once one has ended
        raise SystemExit(2)
    if objective is not None:
        objective.check_shardable(_name_of(strategy))
    if whole:
        asked = " and ".join(f"{name} {settings[name]}" for name in remedies if name in whole)
        remedy = " ".join(f"--model.{name} {remedies[name]}" for name in remedies if name in whole)
        raise ValueError(
            f"strategy {_name_of(strategy)} shards the weights, and {asked} need{'s' if len(whole) == 1 else ''} them "
            f"whole: add {remedy}, or take strategy ddp"
        )


def check_callbacks(callbacks: list[Callback], score: str, has_validation: bool) -> None:
    """Check before the training that callbacks work in it, and that the values that they monitor are logged.

    Args:
        callbacks: The callbacks that a user asks for.
        score: Name of the score that the objective logs.
        has_validation: Whether there are validation images.

    Raises:
        ValueError: If a callback does not work, or monitors a value that is not logged.
    """
    logged = ["train_loss", "lr", *(("val_loss", f"val_{score}") if has_validation else ())]
    for callback in callbacks:
        name, monitor = type(callback).__name__, getattr(callback, "monitor", None)
        if name == "LearningRateFinder":
            raise ValueError(
                f"LearningRateFinder would replace the schedule of the training: compare val_{score} of short runs "
                "instead, such as --model.lr 1e-3 and 3e-3, or run Tuner(trainer).lr_find(model, data) in Python"
            )
        if name in INSTEAD:
            raise ValueError(f"the callback {name} does not work here: {INSTEAD[name]}")
        if monitor is not None and monitor not in logged:
            raise ValueError(f"{name} monitors {monitor!r}, which no training logs: choose {', '.join(logged)}")


def check_memory(subcommand: str, settings: dict[str, Any]) -> None:
    """Check before a model is built that the machine can hold it, and say if building it will take long.

    Args:
        subcommand: "fit", which holds gradients and averages as well, or another.
        settings: Arguments of the objective.

    Raises:
        ValueError: If the blocks alone take more memory than the machine and its GPUs have.
    """
    width, depth = settings.get("embed_dim"), settings.get("depth")
    ratio, decoder = settings.get("mlp_ratio", 4.0), settings.get("decoder_depth") or 0
    if any(
        isinstance(number, bool) or not isinstance(number, int | float) for number in (width, depth, ratio, decoder)
    ):
        return  # the model has its own check
    blocks = depth + decoder
    parameters = round(blocks * (4 + 2 * ratio) * width**2)
    needed, there = parameters * (BYTES_IN_TRAINING if subcommand == "fit" else BYTES_IN_USE), _memory()
    if needed > there:
        what = "weights, gradients and averages of the optimiser" if subcommand == "fit" else "weights"
        raise ValueError(
            f"embed_dim {width} and {blocks} blocks make about {parameters:,} parameters, {needed / 1e9:,.0f} GB of "
            f"{what}; this machine has {there / 1e9:,.0f} GB: take a smaller --model.embed_dim or --model.depth"
        )
    if parameters > MANY or blocks > 1000:
        print(
            f"building a model of about {parameters:,} parameters in {blocks:,} blocks, which takes a while", flush=True
        )


def _memory() -> int:
    """Return the memory of the machine and of its GPUs, in bytes."""
    gpus = range(torch.cuda.device_count())
    of_gpus = sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
    names = getattr(os, "sysconf_names", {})  # Windows has none
    known = "SC_PAGE_SIZE" in names and "SC_PHYS_PAGES" in names
    return of_gpus + (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 2**60)
