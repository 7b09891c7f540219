"""Classification: the LightningModule that trains and evaluates a VisionTransformer as an image classifier."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.image_set import ImageSet
from vit.data.module import ImageDataModule
from vit.explain.default_method import NOT_MEASURED
from vit.objectives.classify.averaged_views import Views, classify_views
from vit.objectives.classify.evaluation import Evaluation, ranked
from vit.objectives.classify.pictures import draw_classification
from vit.objectives.classify.tables import (
    SHARES,
    class_table,
    confusions_table,
    evaluated_rows,
    mistakes_table,
    notes,
    predicted_rows,
    threshold_table,
)
from vit.support.checks import check_choice, check_natural, check_positive_share, check_share
from vit.support.class_names import name_classes
from vit.training.description import Picture, Score, Table
from vit.training.encoder_module import EncoderModule
from vit.training.freezing import freeze_blocks
from vit.training.objective import Objective
from vit.weights import start_from

CURVES = Picture(
    "roc", "ROC and precision-recall", "True over false positives, and precision over recall, of each class"
)
MAPS = Picture(
    "attention",
    "Maps",
    "Images beside the patches that speak for their most probable class",
    has_photographs=True,
    note=f"{NOT_MEASURED} Measure yours by vit-attention explain --trust.",
)


class ViTClassifier(Objective, EncoderModule):
    """Classifies images: a Vision Transformer whose head has a logit for each class.

    Args:
        class_names: Names of the classes, in the order of the logits; None numbers them.
        layer_decay: Factor of the learning rate from one block to the block before it, such as 0.75 for fine-tuning;
            None gives all blocks the same learning rate.
        label_smoothing: Share of the target that is spread evenly over all classes, in [0, 1).
        patch_drop_until: Share of the training, in (0, 1], after which patch_drop no longer drops patches: the model
            then adapts to whole images (as in Li et al. 2023, who tune FLIP without masks at the end).
        init_from: Trained weights to start from, which vit.load can read: a checkpoint, cifar10, or weights of timm,
            transformers, torchvision and other libraries. Patches and positions are resized if their sizes differ, and
            the head starts anew for other classes. Of an ImageCompleter, the blocks and the last norm are taken. None
            starts from init alone.
        freeze: Number of blocks, from the first on, that are frozen, together with the embedding: not trained, without
            dropout and drop_path. If it is depth, only final norm and head are trained (a linear probe). None trains
            all.
        test_views: Views of each test image whose logits are averaged for a second accuracy, test_accuracy_views: the
            image and its mirror image ("flip"), or both also shifted by one pixel in two directions ("six"). "none"
            measures only test_accuracy, which is always the accuracy on the unchanged images.
        compile: Whether torch.compile compiles the training steps. They take less time; the first one, and the first
            one without patch_drop, take 10 to 20 seconds more. Evaluation and prediction are not compiled.
        kwargs: Training and model.

    Raises:
        ValueError: If an argument is out of its range.
    """

    monitor = Score("accuracy", "Accuracy", is_of_images=True)
    columns = (
        Score("test_accuracy_views", "Test accuracy over views", note="logits averaged over the views of test_views"),
        Score("balanced_accuracy", "Balanced accuracy", note="mean recall of the classes"),
        Score("top5_accuracy", "Top-5 accuracy", note="the class is among the five best"),
        Score("roc_auc", "Area under ROC", unit="", note="mean of the classes, each against the rest"),
        Score(
            "average_precision", "Average precision", unit="", note="area below precision over recall, mean of classes"
        ),
        Score("calibration_error", "Calibration error", "lower", note="between confidence and accuracy"),
    )
    pictures = (
        Picture("confusion_matrix", "Confusion", "Share of each predicted class among the images of a class", "tables"),
        Picture("mistakes", "Mistakes", "Mistakes, with what was predicted and what is true", has_photographs=True),
        CURVES,
        MAPS,
        Picture(
            "reliability",
            "Calibration",
            "Accuracy over the confidence of the predictions, and the number of images",
            "facts",
        ),
    )
    test_fields: ClassVar = {"test_accuracy_views": None, "test_views": "none"}
    from_data = (*Objective.from_data, "mean", "std", "num_classes", "class_names")
    prediction_columns = ("class", "probability", "top5")

    def __init__(
        self,
        class_names: list[str] | None = None,
        layer_decay: float | None = None,
        label_smoothing: float = 0.0,
        patch_drop_until: float = 1.0,
        init_from: str | None = None,
        freeze: int | None = None,
        test_views: Views = "none",
        compile: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_share("label_smoothing", label_smoothing, "0.1 is usual")
        check_positive_share("patch_drop_until", patch_drop_until, "to drop no patches, set patch_drop to 0")
        check_choice("test_views", test_views, get_args(Views))
        if freeze is not None:
            check_natural("freeze", freeze, "0 freezes the embedding alone, null trains all")
        self.has_taken_weights = False  # those of init_from, which a further fit must not take again
        self.class_weights: Tensor | None = None  # of the loss, (num_classes,)
        self.threshold: float | None = None  # of the second of two classes, chosen on validation images

    @property
    def drop_rate(self) -> float:
        """Share of the patches that is dropped at present."""
        return self.network.patch_drop.rate

    def prepare_data(self) -> None:
        """Check that the images have classes, before they are decoded.

        Raises:
            ValueError: If they have none.
        """
        if (why := getattr(self.trainer.datamodule, "without_classes", None)) is not None:
            raise ValueError(why)

    def setup(self, stage: str) -> None:
        """Take the weights of ``init_from`` before a training, and print what was taken.

        Raises:
            ValueError: If the file or the labels do not fit.
        """
        data = None if self._trainer is None else self.trainer.datamodule
        for part in data.sets.values() if isinstance(data, ImageDataModule) else ():
            self.check_labels(part.labels)
        if stage != "fit":
            return
        if self.hparams.init_from is not None and not self.has_taken_weights:
            self.has_taken_weights = True
            taken = start_from(self.network, self.hparams.init_from, self.hparams.class_names)
            if self.global_rank == 0:
                print(taken, flush=True)
        if self.hparams.freeze is not None:
            freeze_blocks(self.network, self.hparams.freeze)

    def check_trained_labels(self, labels: Tensor) -> None:
        """Check that a softmax can learn from the labels of a training batch, (B,) or (B, num_classes).

        Raises:
            ValueError: If there is one class, or the shares of an image do not sum to one.
        """
        if self.network.num_classes == 1:
            raise ValueError("the probability of one class alone is always 1: add --model MultilabelClassifier")
        are_shares = labels.ndim == 2 and labels.is_floating_point()
        if are_shares and not torch.allclose(labels.sum(dim=1), labels.new_ones(()), atol=1e-2):
            wrong = int((labels.sum(dim=1) - 1).abs().argmax())
            raise ValueError(
                f"row {wrong} of the labels sums to {float(labels[wrong].sum()):.3g} and not to one: give the share of "
                "each class, or for several labels an image add --model MultilabelClassifier"
            )

    def check_labels(self, labels: Tensor) -> None:
        """Check that the images of a split have one class each.

        Raises:
            ValueError: If they do not.
        """
        data = self.trainer.datamodule
        if getattr(data, "num_classes", None) == 0:
            raise ValueError(f"{type(data).__name__} has texts and no classes: add --model SequenceReader")
        if labels.ndim > 1:
            raise ValueError(
                f"labels have shape {tuple(labels.shape)} and are shares, or several an image: give class numbers, or "
                "for several labels an image add --model MultilabelClassifier"
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the weights of the checkpoint in a further training."""
        super().on_load_checkpoint(checkpoint)
        self.has_taken_weights = True

    def forward(self, images: Tensor) -> Tensor:
        """Classify images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_classes)."""
        return self.network(self.normalise(images))

    def relative_settings(self) -> dict[str, bool]:
        """Return the settings that are a share of the training, and whether each is in use."""
        return super().relative_settings() | {"patch_drop_until": self.hparams.patch_drop_until < 1}

    def on_train_start(self) -> None:
        """Start the schedule, and take the weights of the classes from the data."""
        super().on_train_start()
        weights = None if self.data is None else self.data.class_weights
        self.class_weights = None if weights is None else weights.to(self.device)

    def _update_progress(self) -> None:
        """Pass the progress to patch_drop, too."""
        super()._update_progress()
        hp = self.hparams
        self.network.patch_drop.rate = hp.get("patch_drop", 0.0) if self.progress < hp.patch_drop_until else 0.0

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross-entropy with the labels, or with the soft targets of mixup and cutmix.

        A class weight applies to the images of the class. torch would weight the smoothed targets: with one image of
        a class among a thousand, the share that smoothing gives this class would outweigh the label of every image.
        """
        images, targets = batch
        logits, smoothing = self(images).float(), self.hparams.label_smoothing
        if self.class_weights is None:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        rows = targets if targets.is_floating_point() else F.one_hot(targets, logits.shape[1])
        parts = rows * self.class_weights
        weights = parts.sum(dim=1, keepdim=True)
        losses = F.cross_entropy(logits, parts / weights, label_smoothing=smoothing, reduction="none")
        # Processes have images of different weights.
        return self.mean_of_all((weights[:, 0] * losses).sum(), weights.sum())

    def new_evaluation(self) -> Evaluation:
        """Return the sums of an evaluation over no images."""
        return Evaluation(self.network.num_classes, self.device)

    @torch.compiler.set_stance("force_eager")  # it would compile anew for images without gradients
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, labels = batch
        self.evaluation.update(self(images), labels, index=self.place(batch_idx))

    @torch.compiler.set_stance("force_eager")
    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation, with the mean logits of its views."""
        images, labels = batch
        logits, of_views = classify_views(self, images, self.hparams.test_views)
        self.evaluation.update(logits, labels, of_views, self.place(batch_idx))

    def on_validation_epoch_end(self) -> None:
        """Choose thresholds, and log the monitored score and the loss over all processes."""
        self.evaluation.gather()
        self.choose_thresholds()
        super().on_validation_epoch_end()

    def choose_thresholds(self) -> None:
        """Choose the threshold of the second of two classes on the images of the last evaluation."""
        if self.network.num_classes == 2:
            self.threshold = self.evaluation.best_threshold()

    def on_test_epoch_end(self) -> None:
        """Log the monitored score and the loss over all processes, and the score over views."""
        self.evaluation.gather()
        super().on_test_epoch_end()
        if self.hparams.test_views != "none":
            name = f"{self.monitor.name}_views"
            self.log(f"test_{name}", getattr(self.evaluation, name), prog_bar=True, sync_dist=True)

    @property
    def names(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return name_classes(self.hparams.class_names, self.network.num_classes)

    def scores(self) -> dict[str, Any]:
        """Return the scores of the last evaluation, ready for JSON."""
        return self.evaluation.scores(self.names, self.threshold)

    def evaluated_rows(self) -> dict[int, dict[str, str]]:
        """Return the row of each image of the last evaluation by its place in the data set."""
        return evaluated_rows(self.evaluation.rows, self.names, has_views=self.hparams.test_views != "none")

    def results(self, split: str) -> dict[str, Any]:
        """Return the monitored score of the last evaluation and, for test images, the score over views."""
        found, views, name = super().results(split), self.hparams.test_views, f"{self.monitor.name}_views"
        if split == "test":
            of_views = None if views == "none" else getattr(self.evaluation, name)
            found |= {f"test_{name}": of_views, "test_views": views}
        return found

    @classmethod
    def notes(cls, scores: dict[str, Any]) -> list[str]:
        """Return which classes have no images, and why two classes have no threshold."""
        return notes(scores)

    @classmethod
    def result_lines(cls, results: dict[str, Any]) -> list[str]:
        """Return the line of the score over views, and the notes."""
        name, lines = f"test_{cls.monitor.name}_views", cls.notes(results.get("scores") or {})
        if results.get(name) is None:
            return lines
        return [f"{name}: {100 * results[name]:.2f} % (test_views {results['test_views']})", *lines]

    @classmethod
    def tables(cls, scores: dict[str, Any], split: str | None) -> list[Table]:
        """Return the scores of the classes, the lowest F1 first, large confusions, and the scores at a threshold."""
        return [
            *class_table(scores, split, "lowest F1 first", SHARES),
            *confusions_table(scores, split),
            *threshold_table(scores, split),
        ]

    @classmethod
    def tables_of_images(cls, rows: Sequence[Mapping[str, str]], scores: dict[str, Any]) -> list[Table]:
        """Return the most confident mistakes."""
        return mistakes_table(rows)

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw the last evaluation, and attention on images of its split, into a folder."""
        draw_classification(self, folder, split, image_set)

    @torch.compiler.set_stance("force_eager")
    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Return the probabilities of the classes for the readable images of a batch, (B, num_classes)."""
        images, files, _ = batch
        if not files:  # none of the batch is readable
            return torch.empty(0, self.network.num_classes)
        return self(images).float().softmax(dim=-1)

    def prediction_rows(self, outputs: Tensor) -> list[dict[str, str]]:
        """Return the best class of each image, its probability, and the five best classes: (B, num_classes)."""
        return predicted_rows(*ranked(outputs.cpu()), self.names)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the last validation has chosen."""
        super().on_save_checkpoint(checkpoint)
        self.note_choices(checkpoint)

    def note_choices(self, checkpoint: dict[str, Any]) -> bool:
        """Put the threshold of two classes into a checkpoint."""
        if self.network.num_classes == 2:
            checkpoint["threshold"] = self.threshold
        return self.network.num_classes == 2

    def take_notes(self, checkpoint: dict[str, Any]) -> None:
        """Take the threshold of two classes."""
        super().take_notes(checkpoint)
        self.threshold = checkpoint.get("threshold")

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
