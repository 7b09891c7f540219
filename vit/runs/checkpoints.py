"""Checkpoints of a run: each file is complete at any time, even after a kill or on a full disk."""

import math
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from vit.support.files import UnwritableError, replacing
from vit.training.description import Score
from vit.weights import read_checkpoint
from vit.weights.checkpoint import describe_checkpoint
from vit.weights.tensor_files import is_distributed


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the previous one, then replaces it; executes nothing when reading."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint; after an error the previous file is unchanged.

        Raises:
            OSError: If the file cannot be written; the message names the remedy.
        """
        path = Path(path)
        try:
            with replacing(path) as unfinished:
                with unfinished.open("wb") as file:
                    torch.save(checkpoint, file)
                if is_distributed(path):  # written by the run that this one continues
                    shutil.rmtree(path)
        except (UnwritableError, RuntimeError) as error:
            reason = error.reason if isinstance(error, UnwritableError) else error
            previous = "the one before is intact; " if path.exists() else ""
            raise OSError(f"could not write {path} ({reason}): {previous}free some space, then resume") from error

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        """Read a checkpoint onto the CPU; ``vit.weights.read_checkpoint`` lists what it refuses."""
        return read_checkpoint(path)


def with_atomic_files(plugins: list[Any]) -> list[Any]:
    """Return plugins of a trainer with one that writes whole files; an AsyncCheckpointIO without a writer wraps it.

    A user's own CheckpointIO stays.
    """
    for plugin in plugins:
        if isinstance(plugin, AsyncCheckpointIO) and plugin.checkpoint_io is None:
            plugin.checkpoint_io = AtomicCheckpointIO()
    return plugins if any(isinstance(plugin, CheckpointIO) for plugin in plugins) else [*plugins, AtomicCheckpointIO()]


class RunCheckpoint(ModelCheckpoint):
    """One file in the folder of a run, such as ``last.ckpt``; a resumed run copies it into its own folder.

    If ``monitor`` names a score of the validation, the checkpoint with its best value is kept, else the latest one.
    Ties are broken by the lower ``val_loss``, then by the later step.
    """

    def __init__(self, folder: Path, filename: str, monitor: Score | None = None) -> None:
        super().__init__(
            dirpath=folder,
            filename=filename,
            monitor=None if monitor is None else f"val_{monitor.name}",
            mode="max" if monitor is None else monitor.mode,
            enable_version_counter=False,
            save_on_train_epoch_end=monitor is None,
        )
        self.best_loss = math.inf

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Return whether the current value is the best so far, and note the loss that belongs to it."""
        loss = float(trainer.callback_metrics["val_loss"])
        is_tied = self.best_model_score is not None and bool(current == self.best_model_score)
        is_best = loss <= self.best_loss if is_tied else super().check_monitor_top_k(trainer, current)
        if is_best:
            self.best_loss = loss
        return is_best

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far, and the loss that belongs to it."""
        return super().state_dict() | {"best_loss": self.best_loss}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the resumed checkpoint, which may have been moved since it was written, and its step."""
        self.origin, self.resumed_step = Path(trainer.ckpt_path), checkpoint["global_step"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best value so far and its file; without the file, start with the next value.

        The latest checkpoint is the resumed one itself, whatever its name. A best one that was written after the
        resumed one is of a training that is not continued.
        """
        best = self.origin.with_name(f"{self.filename}{self.FILE_EXTENSION}")
        old, new = self.origin if self.monitor is None else best, Path(self.dirpath) / best.name
        may_be_newer = old != self.origin and self.origin.name != f"last{self.FILE_EXTENSION}"
        if not old.exists() or (may_be_newer and _step_of(old) > self.resumed_step):
            return
        if old != new:
            self._copy(old, new)
        moved = {"dirpath": self.dirpath, "best_model_path": str(new), "kth_best_model_path": str(new)}
        scores = {str(new): score for score in state_dict["best_k_models"].values()}
        super().load_state_dict({**state_dict, **moved, "best_k_models": scores})
        self.best_loss = state_dict.get("best_loss", math.inf)

    def take(self, checkpoint: Path) -> None:
        """Keep another checkpoint of the run as this one."""
        path = Path(self.dirpath) / f"{self.filename}{self.FILE_EXTENSION}"
        if checkpoint.exists():
            self._copy(checkpoint, path)
            self.best_model_path = str(path)

    @rank_zero_only
    def _copy(self, old: Path, new: Path) -> None:
        # With its time: a copy of an older checkpoint is not the newest that a training may go on from.
        with replacing(new) as unfinished:
            (shutil.copytree if old.is_dir() else shutil.copy2)(old, unfinished)


def _step_of(path: Path) -> int:
    """Return the step of a checkpoint; 0 if it cannot be read."""
    try:
        return describe_checkpoint(path).get("global_step", 0)
    except ValueError:
        return 0
