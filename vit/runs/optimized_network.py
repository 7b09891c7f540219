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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the weights are float32 on a CPU, as a program is made of them.

        Raises:
            ValueError: If they are not.
        """
        device, precision = trainer.strategy.root_device.type, str(trainer.precision)
        if device != "cpu":
            raise ValueError(f"--optimize computes on a CPU, and this is {device}: add --trainer.accelerator cpu")
        if precision.endswith("-true") and precision != "32-true":
            raise ValueError(
                f"--optimize takes weights of float32, and --trainer.precision is {precision}: add --trainer.precision "
                "32-true"
            )

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
