"""Sharded training by one word, ``--trainer.strategy fsdp2``, and the part of a tensor that a process has."""

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor


def own_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has, in the same memory; one that is not sharded, as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FullySharded(ModelParallelStrategy):
    """Shards weights, gradients and optimiser over all devices (FSDP2), and saves whole checkpoints."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Shard over as many devices as there are."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
