"""The LightningModule that trains and evaluates a VisionTransformer as a classifier."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning import Callback
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from vit.data.module import ImageDataModule
from vit.model import VisionTransformer
from vit.training.ema import EMA
from vit.training.evaluated import EvaluatedClassifier
from vit.training.initialization import Init, mimetic_attention
from vit.training.optimizer import Optimizer, make_optimizer
from vit.training.progress import Progress
from vit.training.schedule import Decay, learning_rate_factor
from vit.training.teacher import Teacher, distillation_loss
from vit.training.views import WEIGHTS, Views
from vit.weights import check_same_tensors

# What the command line says of a group of parameters; the rest of it is the optimiser's own.
TYPED = ("initial_lr", "weight_decay", "betas")


class ViTClassifier(EvaluatedClassifier):
    """A Vision Transformer with its loss, optimiser and schedule; images come in as they are, and are normalised here.

    Args:
        class_names: Names of the classes, in the order of the logits; None numbers them.
        mean: Mean of each channel, in [0, 1], that images are shifted by.
        std: Deviation of each channel, in [0, 1], that images are divided by.
        lr: Peak learning rate.
        weight_decay: Decoupled weight decay of the weight matrices; biases, norms, tokens and positions have none.
        optimizer: What turns gradients into steps: AdamW for all parameters, or Muon for the matrices of the blocks
            and AdamW for the rest, which learns more per image at the same learning rate.
        betas: Decay of AdamW's averages of the gradient and of its square.
        layer_decay: Factor of the learning rate from one block to the one before, such as 0.75 for fine-tuning;
            None gives all the same.
        warmup: Share of the training, in [0, 1), over which the learning rate rises from zero.
        decay: How the learning rate then falls to zero at the end of the training: along a cosine, linearly, or
            not at all. The end is whatever comes first of trainer.max_epochs, max_steps and max_time.
        label_smoothing: Share of the target spread evenly over all classes, in [0, 1).
        ema_decay: Weight of the past in the moving average of the weights, such as 0.999, which is then what gets
            evaluated and saved; None evaluates the weights themselves.
        patch_drop_until: Share of the training after which patch_drop leaves out no more patches, in (0, 1]: the end
            on whole images makes good for what was missed (Li et al. 2023 tune FLIP so).
        init: Start of the attention weights: uniform after Glorot, or "mimetic", near what trained attention looks
            like, which learns more per image.
        teacher: Share of the training, in [0, 1), in which a small convolutional network is trained first, from whose
            judgement of each image the model learns in the rest, beside the labels; 0 does without. It takes
            one device; its own recipe is fixed.
        test_views: Views of a test image over which logits are averaged for a second accuracy, test_accuracy_views: the
            image and its mirror image ("flip"), or both also shifted by a pixel to two sides ("six"); "none" measures
            only test_accuracy, which is always that of the images as they are.
        compile: Whether the blocks are compiled by torch.compile: slower to start, faster per step on GPUs.
        vit_kwargs: Arguments of the VisionTransformer.
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
        teacher: float = 0.0,
        test_views: Views = "none",
        compile: bool = False,
        **vit_kwargs: Any,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if not 0 < patch_drop_until <= 1:
            raise ValueError(
                f"patch_drop_until ({patch_drop_until}) must be in (0, 1]: to leave out none, set patch_drop to 0"
            )
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup ({warmup}) must be in [0, 1): it is a share of the training, such as 0.05")
        if decay not in ("cosine", "linear", "constant"):
            raise ValueError(f"unknown decay {decay!r}: choose 'cosine', 'linear' or 'constant'")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing ({label_smoothing}) must be in [0, 1), such as 0.1")
        if init not in ("glorot", "mimetic"):
            raise ValueError(f"unknown init {init!r}: choose 'glorot' or 'mimetic'")
        if not 0 <= teacher < 1:
            raise ValueError(f"teacher ({teacher}) must be in [0, 1): 0.35 gives it the first third of the training")
        if test_views not in WEIGHTS:
            raise ValueError(f"unknown test_views {test_views!r}: choose 'none', 'flip' or 'six'")
        self.vit = VisionTransformer(**vit_kwargs)
        if init == "mimetic":
            mimetic_attention(self.vit)
        channels = self.vit.patch_embed.in_channels
        self.teacher = Teacher(channels, self.vit.num_classes, self.vit.patch_embed.image_size) if teacher else None
        self.teacher_learns = False
        # Of the model, so that whoever loads it need not know; not in the state, whose names stay timm's.
        self.register_buffer("mean", torch.tensor(mean or [0.5] * channels)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std or [0.5] * channels)[:, None, None], persistent=False)
        self.progress = Progress()
        self.done = 0.0  # share of the training
        self.data: ImageDataModule | None = None

    def configure_model(self) -> None:
        """Shard the blocks where the strategy says so, then compile them; called again, it does nothing."""
        blocks = self.vit.blocks
        if self.device_mesh is not None and not hasattr(self.vit, "unshard"):
            for block in blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.vit, mesh=self.device_mesh["data_parallel"])
        if self.hparams.compile and blocks[0]._compiled_call_impl is None:
            for block in blocks:
                block.compile()

    def configure_callbacks(self) -> list[Callback]:
        """The moving average of the weights, if it is wanted."""
        return [] if self.hparams.ema_decay is None else [EMA(self.hparams.ema_decay)]

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser, and a learning rate that is set at each step from the share of the training that is done."""
        hp = self.hparams
        if hp.optimizer == "muon" and self.device_mesh is not None:
            raise ValueError(
                "optimizer muon needs whole matrices, and this model is sharded: choose adamw, or strategy ddp"
            )
        if self.teacher is not None and self.trainer.world_size > 1:
            raise ValueError(
                f"teacher ({hp.teacher}) works on one device, not on {self.trainer.world_size}: set teacher to 0"
            )
        groups = [] if self.teacher is None else self.teacher.parameter_groups()
        optimizer = make_optimizer(hp.optimizer, self.vit, hp.lr, hp.weight_decay, hp.betas, hp.layer_decay, groups)
        factors = [self._teacher_factor] * len(groups) + [self._factor] * (len(optimizer.param_groups) - len(groups))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        self.typed = [{name: group[name] for name in TYPED if name in group} for group in optimizer.param_groups]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: torch.optim.lr_scheduler.LambdaLR, metric: Any) -> None:
        """After each step of the optimiser, find how much of the training is done, and set the learning rate by it."""
        self._note_progress()
        scheduler.step()

    def _note_progress(self) -> None:
        """Model and data hear of it, too: what is hard for them may end before the training does."""
        hp = self.hparams
        self.done = self.progress.after(self.trainer.global_step, self.trainer.strategy)
        self.teacher_learns = self.done < hp.teacher
        self.vit.patch_drop.rate = hp.get("patch_drop", 0.0) if self.done < hp.patch_drop_until else 0.0
        if self.data is not None:
            self.data.progress = self.done

    def _factor(self, step: int) -> float:
        """Share of the peak learning rate; the schedule begins where the teacher ends."""
        of_teacher = self.hparams.teacher
        progress = max(0.0, (self.done - of_teacher) / (1 - of_teacher))
        return learning_rate_factor(progress, self.hparams.warmup, self.hparams.decay)

    def _teacher_factor(self, step: int) -> float:
        progress = min(1.0, self.done / self.hparams.teacher)
        return learning_rate_factor(progress, warmup=0.1, decay="linear")

    def forward(self, images: Tensor) -> Tensor:
        """Classify images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_classes)."""
        return self.vit(self._normalized(images))

    def _normalized(self, images: Tensor) -> Tensor:
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return (images - self.mean * scale) / (self.std * scale)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy with the labels, or with the soft targets of mixing; with a teacher, also with what it says."""
        images, targets = self._normalized(batch[0]), batch[1]
        logits = (self.teacher if self.teacher_learns else self.vit)(images).float()
        loss = F.cross_entropy(logits, targets, label_smoothing=self.hparams.label_smoothing)
        if self.teacher is not None and not self.teacher_learns:
            loss = distillation_loss(loss, logits, self.teacher.judge(images))
        # Summed on the device and logged every so many steps: each call of self.log costs 0.3 ms.
        self.loss_sum += loss.detach()
        self.loss_count += 1
        trainer = self.trainer
        steps_now = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        every = trainer.log_every_n_steps
        if (steps_now and every and (trainer.global_step + 1) % every == 0) or trainer.is_last_batch:
            rate = trainer.optimizers[0].param_groups[-1]["lr"]
            self.log("train_loss", self.loss_sum / self.loss_count, prog_bar=True)
            self.log("lr", rate)
            self._reset_loss()
        return loss

    def on_train_start(self) -> None:
        """Find where the schedule ends, and begin the mean of the training loss."""
        # Not in configure_optimizers: asking there makes Lightning build the loader before it has read from a
        # checkpoint how far into the epoch that one was.
        self.progress = Progress(self.trainer)
        self.data = self.trainer.datamodule if isinstance(self.trainer.datamodule, ImageDataModule) else None
        self._check_end()
        # From here on the schedule does it, after each step and before the next batch is made.
        self._note_progress()
        self._take_what_was_typed()
        self._reset_loss()

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
            "teacher": hp.teacher > 0,
            "patch_drop_until": hp.patch_drop_until < 1,
            "mix_until": self.data is not None and self.data.mix_until < 1,
        }
        wanted = [name for name, is_wanted in shares.items() if is_wanted]
        if wanted and not self.progress.has_end:
            raise ValueError(
                f"training has no end that {', '.join(wanted)} could be a share of: set trainer.max_epochs, max_steps "
                "or max_time"
            )

    def _reset_loss(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss_count = 0

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say what differs before torch lists all it cannot match.

        Raises:
            ValueError: If the checkpoint was trained on other classes, comes from another architecture, or has the
                state of another optimiser.
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
        """Check that a checkpoint is of this model and of its classes.

        Raises:
            ValueError: If it was trained on other classes, or comes from another architecture.
        """
        theirs, ours = checkpoint["hyper_parameters"].get("class_names"), self.hparams.class_names
        if theirs and ours and list(theirs) != list(ours):
            differing = sorted(set(theirs) ^ set(ours)) or ["their order"]
            raise ValueError(
                f"the checkpoint tells {len(theirs)} classes apart and the data has {len(ours)}; they differ in "
                f"{', '.join(differing[:5])}: use the data it was trained on"
            )
        if self.device_mesh is None:
            check_same_tensors(self, checkpoint["state_dict"], "the checkpoint")
