"""The LightningModule that trains and evaluates a VisionTransformer as a classifier."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning import Callback
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from vit.model import VisionTransformer
from vit.training.ema import EMA
from vit.training.initialization import Init, mimetic_attention
from vit.training.optimizer import Optimizer
from vit.training.schedule import Decay
from vit.training.scheduled import ScheduledClassifier
from vit.training.views import WEIGHTS, Views
from vit.weights import check_same_tensors


class ViTClassifier(ScheduledClassifier):
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
        if test_views not in WEIGHTS:
            raise ValueError(f"unknown test_views {test_views!r}: choose 'none', 'flip' or 'six'")
        self.vit = VisionTransformer(**vit_kwargs)
        if init == "mimetic":
            mimetic_attention(self.vit)
        channels = self.vit.patch_embed.in_channels
        # Of the model, so that whoever loads it need not know; not in the state, whose names stay timm's.
        self.register_buffer("mean", torch.tensor(mean or [0.5] * channels)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std or [0.5] * channels)[:, None, None], persistent=False)

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

    def forward(self, images: Tensor) -> Tensor:
        """Classify images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_classes)."""
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return self.vit((images - self.mean * scale).div_(self.std * scale))

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> int | None:
        """End an epoch that has no more batches: Lightning begins another after a resume at the end of one."""
        return -1 if batch_idx >= self.trainer.num_training_batches else None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy with the labels, or with the soft targets of mixing."""
        images, targets = batch
        loss = F.cross_entropy(self(images).float(), targets, label_smoothing=self.hparams.label_smoothing)
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
        """Begin the schedule, and the mean of the training loss."""
        super().on_train_start()
        self._reset_loss()

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
            check_same_tensors(
                self, checkpoint["state_dict"], "the checkpoint", "leave out the --model options, or take its own"
            )
