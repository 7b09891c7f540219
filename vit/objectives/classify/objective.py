"""The LightningModule that trains and evaluates a VisionTransformer as an image classifier."""

from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.module import ImageSet
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.classify.evaluation import Evaluation
from vit.objectives.classify.pictures import draw_classification
from vit.objectives.classify.views import Views, classify_views
from vit.support.checks import check_choice, check_natural, check_positive_share, check_share
from vit.support.class_names import name_classes
from vit.training.base import TrainingModule
from vit.training.flop import training_flop
from vit.training.freezing import freeze_blocks
from vit.training.initialization import Init, mimetic_attention
from vit.training.optimizer import Optimizer
from vit.training.schedule import Decay
from vit.weights import start_from

TOP = 5  # classes of a prediction


class ViTClassifier(TrainingModule):
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
        init_from: Trained weights to start from, which vit.load can read: a checkpoint, cifar10, or weights of timm,
            transformers, torchvision and others. Patches and positions are resized where their sizes differ, and the
            head starts anew for other classes; None starts from init alone.
        freeze: Number of blocks, from the first on, that stay as they are, with the embedding: they are not trained,
            and their dropout and drop_path are off. As many as depth leave final norm and head (a linear probe); None
            trains all.
        test_views: Views of each test image whose logits are averaged for a second accuracy, test_accuracy_views: the
            image and its mirror image ("flip"), or both also shifted by one pixel in two directions ("six"). "none"
            measures only test_accuracy, which is always the accuracy on the unchanged images.
        compile: Whether torch.compile compiles the blocks: the start takes longer, and a step on a GPU less time. The
            last block is left as it is where it computes the class token alone.
        vit_kwargs: Arguments of the VisionTransformer.

    Raises:
        ValueError: If an argument is out of its range.
    """

    prediction_columns = ("class", "probability", "top5")

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
        freeze: int | None = None,
        test_views: Views = "none",
        compile: bool = False,
        **vit_kwargs: Any,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_share("label_smoothing", label_smoothing, "0.1 is usual")
        check_positive_share("patch_drop_until", patch_drop_until, "to drop no patches, set patch_drop to 0")
        check_choice("init", init, get_args(Init))
        check_choice("test_views", test_views, get_args(Views))
        if freeze is not None:
            check_natural("freeze", freeze, "0 freezes the embedding alone, null trains all")
        self.vit = VisionTransformer(**vit_kwargs)
        if init == "mimetic":
            mimetic_attention(self.vit)
        self.has_taken_weights = False  # those of init_from, which a further fit must not take again
        self.prepare()
        self.keep_statistics(self.vit.patch_embed.in_channels)
        self.class_weights: Tensor | None = None  # of the loss, (num_classes,)

    @property
    def network(self) -> VisionTransformer:
        """The model that is trained."""
        return self.vit

    @property
    def drop_rate(self) -> float:
        """Share of the patches that is dropped at present."""
        return self.vit.patch_drop.rate

    def setup(self, stage: str) -> None:
        """Take the weights of ``init_from`` before a training, and print what was taken.

        Raises:
            ValueError: If the file does not fit, or images have several labels.
        """
        if getattr(self._trainer and self.trainer.datamodule, "several_labels", False):
            raise ValueError("the images have several labels, or none, and ViTClassifier learns one for each image")
        if stage != "fit":
            return
        if self.hparams.init_from is not None and not self.has_taken_weights:
            self.has_taken_weights = True
            taken = start_from(self.vit, self.hparams.init_from, self.hparams.class_names)
            if self.global_rank == 0:
                print(taken, flush=True)
        if self.hparams.freeze is not None:
            freeze_blocks(self.vit, self.hparams.freeze)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the weights of the checkpoint in a further training."""
        super().on_load_checkpoint(checkpoint)
        self.has_taken_weights = True

    def forward(self, images: Tensor) -> Tensor:
        """Classify images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_classes)."""
        return self.vit(self.normalise(images))

    def shares(self) -> dict[str, bool]:
        """Return the settings that are a share of the training, and whether each is in use."""
        return super().shares() | {"patch_drop_until": self.hparams.patch_drop_until < 1}

    def on_train_start(self) -> None:
        """Start the schedule, and take the weights of the classes from the data."""
        super().on_train_start()
        if self.data is not None and self.data.num_classes == 0:
            raise ValueError(f"{type(self.data).__name__} has texts and no classes: add --model SequenceReader")
        weights = None if self.data is None else self.data.class_weights
        self.class_weights = None if weights is None else weights.to(self.device)

    def _update_progress(self) -> None:
        """Pass the progress to patch_drop, too."""
        super()._update_progress()
        hp = self.hparams
        self.vit.patch_drop.rate = hp.get("patch_drop", 0.0) if self.progress < hp.patch_drop_until else 0.0

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross-entropy with the labels, or with the soft targets of mixup and cutmix."""
        images, targets = batch
        logits, smoothing = self(images).float(), self.hparams.label_smoothing
        return F.cross_entropy(logits, targets, self.class_weights, label_smoothing=smoothing)

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        return training_flop(self.vit)

    def new_evaluation(self) -> Evaluation:
        """Return the sums of an evaluation over no images."""
        return Evaluation(self.vit.num_classes, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, labels = batch
        self.evaluation.update(self(images), labels, images)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation, with the mean logits of its views."""
        images, labels = batch
        logits, of_views = classify_views(self, images, self.hparams.test_views)
        self.evaluation.update(logits, labels, images, of_views)

    def on_test_epoch_end(self) -> None:
        """Log accuracy and loss over all processes."""
        super().on_test_epoch_end()
        if self.hparams.test_views != "none":
            self.log("test_accuracy_views", self.evaluation.accuracy_views, prog_bar=True, sync_dist=True)

    @property
    def names(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return name_classes(self.hparams.class_names, self.vit.num_classes)

    def scores(self) -> dict[str, Any]:
        """Return the scores of the last evaluation, ready for JSON."""
        return self.evaluation.scores(self.names)

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw the last evaluation, and attention on images of its split, into a folder."""
        draw_classification(self, folder, split, image_set)

    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Return the probabilities of the classes for the readable images of a batch, (B, num_classes)."""
        images, files, _ = batch
        if not files:  # none of the batch is readable
            return torch.empty(0, self.vit.num_classes)
        return self(images).float().softmax(dim=-1)

    def prediction_rows(self, outputs: Tensor) -> list[dict[str, str]]:
        """Return the best class of each image, its probability, and the five best classes: (B, num_classes)."""
        values, classes = outputs.cpu().topk(min(TOP, outputs.shape[1]))
        rows = []
        for probabilities, numbers in zip(values.tolist(), classes.tolist(), strict=True):
            names = [self.names[number] for number in numbers]
            ranked = [f"{name} {value:.4f}" for name, value in zip(names, probabilities, strict=True)]
            rows.append({"class": names[0], "probability": f"{probabilities[0]:.4f}", "top5": "; ".join(ranked)})
        return rows

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
        super().check_fits(checkpoint)
