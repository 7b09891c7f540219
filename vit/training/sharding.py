"""Sharded training by one word, ``--trainer.strategy fsdp2``, and the part of a tensor that a process has."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor

from vit.support.files import replacing


def own_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has, in the same memory; one that is not sharded, as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FullySharded(ModelParallelStrategy):
    """Shards weights, gradients and optimiser over all devices (FSDP2).

    Args:
        save_distributed_checkpoint: Whether each process saves the part that it has, all of them in a folder. Otherwise
            the first process gathers all parts, and saves one file.
    """

    def __init__(self, save_distributed_checkpoint: bool = False) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=save_distributed_checkpoint)

    def setup_environment(self) -> None:
        """Shard over as many devices as there are."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Save a checkpoint; what is written beside the previous one then takes its place."""
        if not self._save_distributed_checkpoint:
            # ModelParallelStrategy would have all processes at once delete a folder that this file replaces.
            super(ModelParallelStrategy, self).save_checkpoint(checkpoint, filepath, storage_options)
            return
        with replacing(Path(filepath)) if self.is_global_zero else nullcontext() as unfinished:
            super().save_checkpoint(checkpoint, unfinished, storage_options)  # at the path that the first process names
