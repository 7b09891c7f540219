"""Writing checkpoints so that a full disk or a kill leaves the previous one whole."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from vit.weights import read_checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the old file and take its place only when complete; read without executing anything."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint, or leave what was there.

        Raises:
            OSError: If it cannot be written, with the remedy.
        """
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except (OSError, RuntimeError) as error:
            unfinished.unlink(missing_ok=True)
            previous = "the one before is intact; " if path.exists() else ""
            raise OSError(f"could not write {path} ({error}): {previous}free some space, then resume") from error

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        """Read a checkpoint onto the CPU; see ``vit.weights.read_checkpoint`` for what it refuses."""
        return read_checkpoint(path)
