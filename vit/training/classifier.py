"""The LightningModule that trains and evaluates a VisionTransformer as an image classifier."""

from typing import Any, get_args

import torch
import torch.nn.functional as F
from lightning import Callback, LightningModule
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from vit.checks import check_choice, check_non_negative, check_positive_share, check_share
from vit.data.module import ImageDataModule
from vit.model import VisionTransformer
from vit.training.ema import EMA
from vit.training.evaluation import Evaluation
from vit.training.initialization import Init, mimetic_attention
from vit.training.optimizer import Optimizer, make_optimizer
from vit.training.schedule import Decay, TrainingLength, learning_rate_factor
from vit.training.views import Views, classify_views
from vit.weights import check_same_tensors, start_from

# What the command line sets in a parameter group; the optimiser's state is the rest.
SETTINGS = ("initial_lr", "weight_decay", "betas")


class ViTClassifier(LightningModule):
    """A Vision Transformer with its loss, optimiser and schedule; it normalises the images itself.

    Args:
        class_names: Names of the classes, in the order of the logits; None numbers them.
        mean: Mean of each image channel, in [0, 1], which is subtracted from images; None is 0.5 for each.
        std: Standard deviation of each image channel, in [0, 1], by which images are divided; None is 0.5 for each.
        lr: Peak learning rate.
        weight_decay: Decoupled weight decay of the weight matrices; biases, norms, tokens and positions have none.
        optimizer: AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the others, which
            reaches a higher accuracy in the same number of steps at the same learning rate.
        betas: Decay of AdamW's averages of the gradient and of its square.
        layer_decay: Factor of the learning rate from one block to the block before it, such as 0.75 for fine-tuning;
            None gives all blocks the same learning rate.
        warmup: Share of the training, in [0, 1), over which the learning rate rises from zero to its peak.
        decay: How the learning rate then falls to zero at the end of the training: along a cosine, linearly, or
            not at all. The training ends at trainer.max_epochs, max_steps or max_time, whichever comes first.
        label_smoothing: Share of the target that is spread evenly over all classes, in [0, 1).
        ema_decay: Weight of the past in the moving average of the weights, such as 0.999. The average is then evaluated
            and saved; None evaluates and saves the weights themselves.
        patch_drop_until: Share of the training, in (0, 1], after which patch_drop no longer drops patches: the model
            then adapts to whole images (as in Li et al. 2023, who tune FLIP without masks at the end).
        init: Initial attention weights: Glorot's uniform distribution, or "mimetic", close to the structure of trained
            attention (Trockman and Kolter 2023).
        init_from: Trained weights to start from, which vit.load can read, such as a checkpoint, or cifar10. Patches and
            positions are resized where their sizes differ, and the head starts anew for other classes; None starts
            from init alone.
        test_views: Views of each test image whose logits are averaged for a second accuracy, test_accuracy_views: the
            image and its mirror image ("flip"), or both also shifted by one pixel in two directions ("six"). "none"
            measures only test_accuracy, which is always the accuracy on the unchanged images.
        compile: Whether torch.compile compiles the blocks: the start takes longer, and a step on a GPU less time.
        vit_kwargs: Arguments of the VisionTransformer.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        class_names: list[str] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        optimizer: Optimizer = "adamw",
        betas: tuple[float, float] = (0.9, 0.99),
        layer_decay: float | None = None,
        warmup: float = 0.05,
        decay: Decay = "cosine",
        label_smoothing: float = 0.0,
        ema_decay: float | None = None,
        patch_drop_until: float = 1.0,
        init: Init = "glorot",
        init_from: str | None = None,
        test_views: Views = "none",
        compile: bool = False,
        **vit_kwargs: Any,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._check_hyperparameters()
        self.vit = VisionTransformer(**vit_kwargs)
        if init == "mimetic":
            mimetic_attention(self.vit)
        channels = self.vit.patch_embed.in_channels
        # Not in the state_dict, whose names stay timm's; vit.load reads them from the hyper-parameters.
        self.register_buffer("mean", torch.tensor(mean or [0.5] * channels)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std or [0.5] * channels)[:, None, None], persistent=False)
        self.progress = 0.0  # share of the training that is done, in [0, 1]
        self.data: ImageDataModule | None = None
        self.class_weights: Tensor | None = None  # of the loss, (num_classes,)
        self.evaluation: Evaluation | None = None

    def _check_hyperparameters(self) -> None:
        hp = self.hparams
        check_non_negative("lr", hp.lr, "1e-3 is usual")
        check_non_negative("weight_decay", hp.weight_decay, "0.05 is usual, 0 turns it off")
        for beta in hp.betas:
            check_share("betas", beta, "0.9 and 0.99 are usual")
        if hp.layer_decay is not None:
            check_positive_share("layer_decay", hp.layer_decay, "0.75 is usual, null gives all blocks the same rate")
        check_share("warmup", hp.warmup, "it is a share of the training, such as 0.05")
        check_share("label_smoothing", hp.label_smoothing, "0.1 is usual")
        check_positive_share("patch_drop_until", hp.patch_drop_until, "to drop no patches, set patch_drop to 0")
        for name, kind in (("optimizer", Optimizer), ("decay", Decay), ("init", Init), ("test_views", Views)):
            check_choice(name, hp[name], get_args(kind))

    def setup(self, stage: str) -> None:
        """Take the weights of ``init_from`` before a training, and print what was taken.

        Raises:
            ValueError: If the file does not fit.
        """
        if stage == "fit" and self.hparams.init_from is not None:
            taken = start_from(self.vit, self.hparams.init_from, self.hparams.class_names)
            if self.global_rank == 0:
                print(taken, flush=True)

    def configure_model(self) -> None:
        """Shard the blocks if the strategy does so, then compile them; a second call does nothing."""
        blocks = self.vit.blocks
        if self.device_mesh is not None and not hasattr(self.vit, "unshard"):
            for module in (*blocks, self.vit):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])
        if self.hparams.compile and blocks[0]._compiled_call_impl is None:
            for block in blocks:
                block.compile()

    def configure_callbacks(self) -> list[Callback]:
        """Return the moving average of the weights, if ``ema_decay`` asks for it."""
        return [] if self.hparams.ema_decay is None else [EMA(self.hparams.ema_decay)]

    def forward(self, images: Tensor) -> Tensor:
        """Classify images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_classes)."""
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return self.vit((images - self.mean * scale).div_(self.std * scale))

    def on_train_start(self) -> None:
        """Start the schedule and the mean of the training loss.

        Raises:
            ValueError: If a setting is a share of the training, and the training has no end.
        """
        # Not in configure_optimizers: there, TrainingLength would make Lightning build the loader before it restores
        # the position in the epoch.
        self.length = TrainingLength(self.trainer)
        self.data = self.trainer.datamodule if isinstance(self.trainer.datamodule, ImageDataModule) else None
        weights = None if self.data is None else self.data.class_weights
        self.class_weights = None if weights is None else weights.to(self.device)
        self._check_end()
        self._update_progress()
        self._restore_settings()
        self._reset_loss()

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> int | None:
        """End an epoch without batches, which Lightning starts after a resume from the end of an epoch."""
        return -1 if batch_idx >= self.trainer.num_training_batches else None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the cross-entropy with the labels, or with the soft targets of mixup and cutmix."""
        images, targets = batch
        logits, smoothing = self(images).float(), self.hparams.label_smoothing
        loss = F.cross_entropy(logits, targets, self.class_weights, label_smoothing=smoothing)
        # Summed on the device and logged every log_every_n_steps: each call of self.log takes 0.3 ms.
        self.loss_sum += loss.detach()
        self.loss_count += 1
        trainer = self.trainer
        is_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        every = trainer.log_every_n_steps
        if (is_step and every and (trainer.global_step + 1) % every == 0) or trainer.is_last_batch:
            self.log("train_loss", self.loss_sum / self.loss_count, prog_bar=True)
            self.log("lr", trainer.optimizers[0].param_groups[-1]["lr"])
            self._reset_loss()
        return loss

    def _reset_loss(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss_count = 0

    def on_validation_epoch_start(self) -> None:
        """Start an evaluation."""
        self.evaluation = Evaluation(self.vit.num_classes, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, labels = batch
        self.evaluation.update(self(images), labels, images)

    def on_validation_epoch_end(self) -> None:
        """Log accuracy and loss over all processes."""
        self._log_evaluation("val")

    on_test_epoch_start = on_validation_epoch_start

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation, with the mean logits of its views."""
        images, labels = batch
        logits, of_views = classify_views(self, images, self.hparams.test_views)
        self.evaluation.update(logits, labels, images, of_views)

    def on_test_epoch_end(self) -> None:
        """Log accuracy and loss over all processes."""
        self._log_evaluation("test")
        if self.hparams.test_views != "none":
            self.log("test_accuracy_views", self.evaluation.accuracy_views, prog_bar=True, sync_dist=True)

    def _log_evaluation(self, split: str) -> None:
        for tensor in self.evaluation.sums():
            tensor.copy_(self.trainer.strategy.reduce(tensor, reduce_op="sum"))
        accuracy, loss = self.evaluation.accuracy, self.evaluation.loss
        # Equal on all processes already; without sync_dist, Lightning warns.
        self.log_dict({f"{split}_accuracy": accuracy, f"{split}_loss": loss}, prog_bar=True, sync_dist=True)

    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Return the probabilities of the classes for the readable images of a batch, (B, num_classes)."""
        images, files, _ = batch
        if not files:  # none of the batch is readable
            return torch.empty(0, self.vit.num_classes)
        return self(images).float().softmax(dim=-1)

    def configure_optimizers(self) -> dict[str, Any]:
        """Return the optimiser, and a learning rate that each step sets from the progress of the training.

        Raises:
            ValueError: If Muon is asked for and the model is sharded.
        """
        hp = self.hparams
        if hp.optimizer == "muon" and self.device_mesh is not None:
            raise ValueError(
                "optimizer muon needs whole matrices, and this model is sharded: choose adamw, or strategy ddp"
            )
        optimizer = make_optimizer(hp.optimizer, self.vit, hp.lr, hp.weight_decay, hp.betas, hp.layer_decay)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._learning_rate_factor)
        self.settings = [{name: group[name] for name in SETTINGS if name in group} for group in optimizer.param_groups]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: torch.optim.lr_scheduler.LambdaLR, metric: Any) -> None:
        """Update the progress after each step of the optimiser, and the learning rate with it."""
        self._update_progress()
        scheduler.step()

    def _learning_rate_factor(self, step: int) -> float:
        return learning_rate_factor(self.progress, self.hparams.warmup, self.hparams.decay)

    def _update_progress(self) -> None:
        """Pass the progress to the schedule, to patch_drop, and to the data, whose mixing may end early."""
        hp = self.hparams
        self.progress = self.length.progress(self.trainer.global_step, self.trainer.strategy)
        self.vit.patch_drop.rate = hp.get("patch_drop", 0.0) if self.progress < hp.patch_drop_until else 0.0
        if self.data is not None:
            self.data.progress = self.progress

    def _restore_settings(self) -> None:
        """Set the learning rates, weight decay and betas of now, where a checkpoint brought back its own."""
        scheduler = self.trainer.lr_scheduler_configs[0].scheduler
        scheduler.base_lrs = [settings["initial_lr"] for settings in self.settings]
        groups = zip(scheduler.optimizer.param_groups, self.settings, scheduler.lr_lambdas, strict=True)
        for group, settings, factor in groups:
            group.update(settings, lr=settings["initial_lr"] * factor(scheduler.last_epoch))

    def _check_end(self) -> None:
        hp = self.hparams
        shares = {
            "warmup": hp.warmup > 0,
            f"decay {hp.decay}": hp.decay != "constant",
            "patch_drop_until": hp.patch_drop_until < 1,
            "mix_until": self.data is not None and self.data.mix_until < 1,
        }
        used = [name for name, is_used in shares.items() if is_used]
        if used and not self.length.has_end:
            raise ValueError(
                f"training has no end that {', '.join(used)} could be a share of: set trainer.max_epochs, max_steps "
                "or max_time"
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint fits before torch loads it: its messages would be longer.

        Raises:
            ValueError: If the checkpoint has other classes, another architecture, or the state of another optimiser.
        """
        self.check_fits(checkpoint)
        before = checkpoint["hyper_parameters"]
        for name in ("optimizer", "layer_decay"):
            if name in before and before[name] != self.hparams[name]:
                raise ValueError(
                    f"the checkpoint was trained with {name} {before[name]!r}, whose state does not fit {name} "
                    f"{self.hparams[name]!r}: leave --model.{name} as it was"
                )

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint has the classes and the architecture of this model.

        Raises:
            ValueError: If the classes or the architecture differ.
        """
        theirs, ours = checkpoint["hyper_parameters"].get("class_names"), self.hparams.class_names
        if theirs and ours and list(theirs) != list(ours):
            differing = sorted(set(theirs) ^ set(ours)) or ["their order"]
            raise ValueError(
                f"the checkpoint has {len(theirs)} classes and the data has {len(ours)}; they differ in "
                f"{', '.join(differing[:5])}: use the data it was trained on"
            )
        if self.device_mesh is None:
            check_same_tensors(
                self, checkpoint["state_dict"], "the checkpoint", "leave out the --model options, or take its own"
            )
