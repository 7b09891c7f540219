"""A check that all processes of a training go on from the same checkpoint."""

from pathlib import Path

from lightning import Callback, LightningModule, Trainer


class SameStart(Callback):
    """Compares the checkpoints that the processes have found, before one of them is read.

    Each process searches on its own, before the processes are connected: torchrun keeps what was agreed before a
    restart, and a process that starts first would take that. On a shared file system all processes find the same
    checkpoint, unless a machine is slow to see what another machine wrote.

    Args:
        checkpoint: The checkpoint that this process has found; None if there is none.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the checkpoint against that of the first process.

        Raises:
            ValueError: In all processes, if one has found another.
        """
        first = trainer.strategy.broadcast(self.checkpoint)
        if not trainer.strategy.reduce_boolean_decision(first == self.checkpoint, all=True):
            raise ValueError(f"the first process goes on from {first}, another one does not see that: start again")
