"""Sharded training by one word: ``--trainer.strategy fsdp2``."""

from lightning.pytorch.strategies import ModelParallelStrategy


class FullySharded(ModelParallelStrategy):
    """Shards weights, gradients and optimiser over all devices (FSDP2), and saves whole checkpoints."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """Shard over as many devices as there are."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
