"""The part of a LightningModule that makes the optimiser, and lets it and all else follow how much is done."""

from typing import Any

import torch

from vit.data.module import ImageDataModule
from vit.training.evaluated import EvaluatedClassifier
from vit.training.optimizer import make_optimizer
from vit.training.progress import Progress
from vit.training.schedule import learning_rate_factor

# What the command line says of a group of parameters; the rest of it is the optimiser's own.
TYPED = ("initial_lr", "weight_decay", "betas")


class ScheduledClassifier(EvaluatedClassifier):
    """An image classifier whose learning rate, dropped patches and mixed images follow the training's course.

    Whoever derives from it gives the model as ``vit``, and the hyper-parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress()
        self.done = 0.0  # share of the training
        self.data: ImageDataModule | None = None

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser, and a learning rate that is set at each step from the share of the training that is done."""
        hp = self.hparams
        if hp.optimizer == "muon" and self.device_mesh is not None:
            raise ValueError(
                "optimizer muon needs whole matrices, and this model is sharded: choose adamw, or strategy ddp"
            )
        optimizer = make_optimizer(hp.optimizer, self.vit, hp.lr, hp.weight_decay, hp.betas, hp.layer_decay)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        self.typed = [{name: group[name] for name in TYPED if name in group} for group in optimizer.param_groups]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """Find where the schedule ends, and begin it."""
        # Not in configure_optimizers: asking there makes Lightning build the loader before it has read from a
        # checkpoint how far into the epoch that one was.
        self.progress = Progress(self.trainer)
        self.data = self.trainer.datamodule if isinstance(self.trainer.datamodule, ImageDataModule) else None
        self._check_end()
        # From here on the schedule does it, after each step and before the next batch is mixed.
        self._note_progress()
        self._take_what_was_typed()

    def _take_what_was_typed(self) -> None:
        """Learning rates, decay and betas as they are asked for now, where a checkpoint brought back those it had."""
        scheduler = self.trainer.lr_scheduler_configs[0].scheduler
        scheduler.base_lrs = [typed["initial_lr"] for typed in self.typed]
        groups = zip(scheduler.optimizer.param_groups, self.typed, scheduler.lr_lambdas, strict=True)
        for group, typed, factor in groups:
            group.update(typed, lr=typed["initial_lr"] * factor(scheduler.last_epoch))

    def _check_end(self) -> None:
        """Raise a ValueError if something is a share of a training without an end."""
        hp = self.hparams
        shares = {
            "warmup": hp.warmup > 0,
            f"decay {hp.decay}": hp.decay != "constant",
            "patch_drop_until": hp.patch_drop_until < 1,
            "mix_until": self.data is not None and self.data.mix_until < 1,
        }
        wanted = [name for name, is_wanted in shares.items() if is_wanted]
        if wanted and not self.progress.has_end:
            raise ValueError(
                f"training has no end that {', '.join(wanted)} could be a share of: set trainer.max_epochs, max_steps "
                "or max_time"
            )

    def lr_scheduler_step(self, scheduler: torch.optim.lr_scheduler.LambdaLR, metric: Any) -> None:
        """After each step of the optimiser, find how much of the training is done, and set the learning rate by it."""
        self._note_progress()
        scheduler.step()

    def _note_progress(self) -> None:
        """Model and data hear of it, too: what is hard for them may end before the training does."""
        hp = self.hparams
        self.done = self.progress.after(self.trainer.global_step, self.trainer.strategy)
        self.vit.patch_drop.rate = hp.get("patch_drop", 0.0) if self.done < hp.patch_drop_until else 0.0
        if self.data is not None:
            self.data.progress = self.done

    def _factor(self, step: int) -> float:
        return learning_rate_factor(self.done, self.hparams.warmup, self.hparams.decay)
