"""A callback that evaluates by an optimised program instead of the network."""

import torch
from lightning import Callback, LightningModule, Trainer

from vit.inference import optimize


class OptimizedNetwork(Callback):
    """Computes the logits of a test, a validation or a prediction by a program of ``vit.optimize``.

    The network is restored after the last image, because pictures of attention need its layers.

    Args:
        dtype: Name of the type in which the program computes, such as "bfloat16".
    """

    def __init__(self, dtype: str) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the program, and print a line that says how close it is to the network.

        Raises:
            ValueError: If the network cannot be optimised.
        """
        program = optimize(pl_module.network, self.dtype)
        pl_module.network.forward = program.forward  # a module would become a submodule instead
        print(f"optimised: {program.extra_repr()}", flush=True)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the network compute again."""
        del pl_module.network.forward

    on_validation_epoch_start = on_predict_epoch_start = on_test_epoch_start
    on_validation_epoch_end = on_predict_epoch_end = on_test_epoch_end
