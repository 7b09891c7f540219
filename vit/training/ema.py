"""The exponential moving average of the weights, which is evaluated and saved in their place."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor


class EMA(Callback):
    """Average the weights over the steps; validate, test and save the average (Polyak and Juditsky 1992).

    ``average = d * average + (1 - d) * weights`` after each step, where d grows as ``(1 + step) / (10 + step)``
    up to ``decay``, so that the initial weights soon vanish from the average. Lightning's WeightAveraging copies the
    whole module and updates tensor by tensor; this callback updates all tensors in one call.

    Args:
        decay: Weight of the past, such as 0.999: an average over about the last 1 / (1 - decay) steps.

    Raises:
        ValueError: If ``decay`` is not between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay ({decay}) must be between 0 and 1, such as 0.999; null leaves it out")
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}  # the training weights while the module holds the average
        self.last_step = 0
        self.resumed_weights: dict[str, Tensor] | None = None
        self.resumed_average: dict[str, Tensor] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse sharded models: no process holds all their weights."""
        if stage == "fit" and isinstance(trainer.strategy, ModelParallelStrategy):
            raise ValueError("ema_decay does not work with sharded models: set --model.ema_decay null, or strategy ddp")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from the module, whose weights are the average after a resume; then restore the training weights."""
        # At least float32: bfloat16 rounds a small step towards the weights to zero.
        self.average = {
            name: self.resumed_average.get(name, parameter.detach()).to(
                parameter.device, torch.promote_types(parameter.dtype, torch.float32), copy=True
            )
            for name, parameter in pl_module.named_parameters()
        }
        self.kept = {}
        if self.resumed_weights is not None:
            pl_module.load_state_dict(self.resumed_weights, strict=False)
            self.resumed_weights, self.resumed_average = None, {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the step of a resumed training, which Lightning restores after ``on_fit_start``."""
        self.last_step = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Add the new weights to the average, once per step of the optimiser."""
        if trainer.global_step == self.last_step:
            return
        self.last_step = trainer.global_step
        decay = min(self.decay, (1 + self.last_step) / (10 + self.last_step))
        averages = list(self.average.values())
        weights = [weight.to(mean.dtype) for mean, weight in zip(averages, pl_module.parameters(), strict=True)]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average into the module."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._put_average(pl_module)

    @torch.no_grad()
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the training weights back into the module."""
        if trainer.state.fn == TrainerFn.FITTING:
            for name, parameter in pl_module.named_parameters():
                parameter.copy_(self.kept[name])
            self.kept = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average into the module for good."""
        self._put_average(pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average into the module if a resumed run had nothing left to train."""
        self._put_average(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what a resume needs: the training weights, and the average where the model's weights round it.

        Lightning does not call this for files of weights alone.
        """
        if self.average:
            module = {name: parameter.detach() for name, parameter in pl_module.named_parameters()}
            checkpoint["training_weights"] = self.kept or module
            rounded = {name: mean for name, mean in self.average.items() if mean.dtype != module[name].dtype}
            if rounded:
                checkpoint["training_average"] = rounded

    def save_average(self, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make the average the weights of the model in a checkpoint. The module calls this for every checkpoint."""
        if self.average:
            parameters = dict(pl_module.named_parameters())
            average = {name: self.average[name].to(parameter.dtype) for name, parameter in parameters.items()}
            checkpoint["state_dict"] = {**checkpoint["state_dict"], **average}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the training weights and the average until the module is on its device."""
        self.resumed_weights = checkpoint.get("training_weights")
        self.resumed_average = checkpoint.get("training_average", {})

    @torch.no_grad()
    def _put_average(self, pl_module: LightningModule) -> None:
        """Put the average into the module, unless it is there, and keep the training weights."""
        if self.kept:
            return
        # The average itself stays as it is: a module in bfloat16 would round it at each validation.
        self.kept = {name: parameter.clone() for name, parameter in pl_module.named_parameters()}
        for name, parameter in pl_module.named_parameters():
            parameter.copy_(self.average[name])
