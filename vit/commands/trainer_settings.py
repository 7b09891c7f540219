"""What a trainer of the command line has unless the user chooses: precision, callbacks, progress bar."""

import os
import sys
from typing import Any

import torch
from lightning import Callback
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.plugins import Precision

from vit.runs.checkpoints import with_atomic_files
from vit.runs.record import RunRecord
from vit.runs.restarts import use_new_port
from vit.runs.run_pictures import RunPictures
from vit.runs.tested_images import PerImageTable
from vit.training.progress_display import ImagesPerSecondBar, ParameterSummary
from vit.training.seeded_steps import SeededSteps
from vit.training.sharding import FullySharded
from vit.training.stop_at_nan import StopAtNaN


def run_callbacks(seed: int, record: RunRecord, checkpoints: list[Callback]) -> list[Callback]:
    """Return the callbacks of a training or an evaluation, in the order in which they are called."""
    return [
        SeededSteps(seed),  # seeds a step before the other callbacks can draw
        StopAtNaN(),  # raises before a bad step is counted or saved
        RunPictures(record),  # prints what it could not draw before RunRecord prints how to resume
        record,  # is complete before a checkpoint holds it
        PerImageTable(record),
        *checkpoints,
    ]


def numerics_in_python(chosen: str | None, clip: float | None) -> str:
    """Return which settings of a ``Trainer()`` in Python give other numbers, as a line; "" if none do.

    >>> numerics_in_python("bf16-mixed", 0), numerics_in_python("32-true", None)
    ('Trainer() in Python has --trainer.precision 32-true (here bf16-mixed, the fastest)', '')

    Args:
        chosen: The precision that we chose; None if the user did.
        clip: The limit of gradients.
    """
    settings = [f"--trainer.precision 32-true (here {chosen}, the fastest)"] if chosen not in (None, "32-true") else []
    settings += [f"--trainer.gradient_clip_val null (here {clip})"] if clip else []
    return f"Trainer() in Python has {' and '.join(settings)}" if settings else ""


def fastest_precision(accelerator: Any) -> str:
    """Return "bf16-mixed" if the hardware is faster in bfloat16 than in float32, else "32-true"."""
    if accelerator != "cpu" and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator != "cpu" and torch.backends.mps.is_available():
        return "32-true"
    return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"


def display_callbacks(config: dict[str, Any], asked: list[Callback]) -> list[Callback]:
    """Return the progress bar and the summary of the model, if they are enabled and the user adds none."""
    has_bar = any(isinstance(callback, ProgressBar) for callback in asked)
    has_summary = any(isinstance(callback, ModelSummary) for callback in asked)
    adds_bar = not has_bar and sys.stdout.isatty() and config["enable_progress_bar"] is not False
    config["enable_progress_bar"] = has_bar or adds_bar
    config["enable_model_summary"] = bool(config["enable_model_summary"])
    adds_summary = config["enable_model_summary"] and not has_summary
    return [*([ImagesPerSecondBar()] if adds_bar else []), *([ParameterSummary()] if adds_summary else [])]


def sets_precision(plugins: Any) -> bool:
    """Return whether one of the user's plugins sets the precision."""
    return any(isinstance(plugin, Precision) for plugin in as_plugin_list(plugins))


def set_engine(config: dict[str, Any]) -> None:
    """Add the plugin that writes whole checkpoints, and set devices and strategy if words name them."""
    config["plugins"] = with_atomic_files(as_plugin_list(config["plugins"]))
    if TorchElasticEnvironment.detect():
        use_new_port()
        if config["devices"] == "auto":  # as many as torchrun started
            config["devices"] = int(os.environ["LOCAL_WORLD_SIZE"])
    if config["strategy"] == "fsdp2":
        config["strategy"] = FullySharded()


def as_plugin_list(value: Any) -> list[Any]:
    """Return one plugin or callback, several or none as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
