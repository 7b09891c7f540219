"""Several labels per image: the LightningModule that trains and evaluates an independent logit for each class."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.image_set import ImageSet
from vit.objectives.classify.objective import CURVES, MAPS, ViTClassifier
from vit.objectives.classify.tables import class_table
from vit.objectives.multilabel.evaluation import MultilabelEvaluation, one_row_each
from vit.objectives.multilabel.pictures import draw_multilabel
from vit.objectives.multilabel.tables import CLASS_SHARES, evaluated_rows, mistakes_table, predicted_rows
from vit.support.checks import check_choice
from vit.training.description import Picture, Score, Table

PositiveWeights = Literal["none", "balanced"]
LARGEST_WEIGHT = 20.0  # of a positive label, so that one rare image does not decide the training


class MultilabelClassifier(ViTClassifier):
    """Predicts for each class whether an image shows it: a Vision Transformer with a binary cross-entropy per class.

    The threshold of a class is the probability with the highest F1 on the validation images; without validation images
    it is 1/2. It is kept in the checkpoint.

    Args:
        positive_weights: Weight of the images that show a class, in its loss: "balanced" is the number of training
            images without the class divided by the number with it, from 1/20 to 20; "none" is 1.
        kwargs: Those of ViTClassifier.

    Raises:
        ValueError: If an argument is out of its range.
    """

    monitor = Score("mean_average_precision", "Mean average precision")
    columns = (
        Score("test_mean_average_precision_views", "Test mean average precision over views"),
        Score("f1", "F1", note="mean of the classes, at thresholds chosen on validation images"),
        Score("roc_auc", "Area under ROC", unit="", note="mean of the classes"),
        Score("exact_match", "Exact match", note="all labels of an image are right", is_of_images=True),
    )
    pictures = (
        Picture("per_class", "Scores of the classes", "Precision, recall and F1 of each class"),
        Picture("mistakes", "Mistakes", "Labels that are wrong, the most confident first", has_photographs=True),
        CURVES,
        MAPS,
    )
    test_fields: ClassVar = {"test_mean_average_precision_views": None, "test_views": "none"}
    prediction_columns = ("labels", "probabilities")

    def __init__(self, positive_weights: PositiveWeights = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("positive_weights", positive_weights, get_args(PositiveWeights))
        self.register_buffer("thresholds", torch.full((self.network.num_classes,), 0.5))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "MultilabelClassifier":
        """Keep the thresholds in float32: in half precision, one near 1 would become 1, which no image reaches."""
        thresholds = self.thresholds
        super()._apply(fn, recurse)
        # Tensors on the meta device have no values to keep.
        self.thresholds = self.thresholds.float() if thresholds.is_meta else thresholds.to(self.thresholds.device)
        return self

    def check_labels(self, labels: Tensor) -> None:
        """Take any number of labels."""

    def check_trained_labels(self, labels: Tensor) -> None:
        """Take any number of classes, and of labels from 0 to 1.

        Raises:
            ValueError: If a label is outside: the cross-entropy would have no lower bound.
        """
        is_share = (labels >= 0) & (labels <= 1)
        if labels.ndim == 2 and not is_share.all():
            raise ValueError(
                f"a label is {labels[~is_share][0].item():g}, and labels of several classes are 0 and 1, or shares "
                "between: turn -1 into 0, and leave out images whose labels are not known"
            )

    def on_train_start(self) -> None:
        """Start the schedule, check the labels, and count them for ``positive_weights``."""
        super().on_train_start()
        if self.data is not None and self.data.balance == "loss":
            raise ValueError(
                "balance 'loss' weights the one class of an image, and each class has its own loss here: set it to "
                "'none', and --model.positive_weights balanced"
            )
        if self.data is not None:  # those of other loaders are checked batch by batch
            self.check_trained_labels(self.data.sets["train"].labels)
        self.class_weights = None
        if self.hparams.positive_weights == "balanced":
            if self.data is None:
                raise ValueError(
                    "positive_weights balanced counts the labels of all training images, which only data modules of "
                    "vit.data tell: set it to none"
                )
            labels = one_row_each(self.trainer.datamodule.sets["train"].labels, self.network.num_classes)
            with_class = labels.sum(dim=0)
            weights = (len(labels) - with_class) / with_class.clamp(min=1)
            self.class_weights = weights.clamp(1 / LARGEST_WEIGHT, LARGEST_WEIGHT).to(self.device)

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean binary cross-entropy over images and classes; mixup and cutmix have soft targets."""
        images, labels = batch
        logits, smoothing = self(images).float(), self.hparams.label_smoothing
        shown = one_row_each(labels, logits.shape[1])
        hidden = 1 - shown
        if self.class_weights is not None:
            shown = shown * self.class_weights
        # The weight is that of the label. As pos_weight, it would multiply what smoothing adds to the other images.
        weights = shown + hidden
        targets = shown / weights * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, targets, weight=weights)

    def new_evaluation(self) -> MultilabelEvaluation:
        """Return an evaluation over no images."""
        return MultilabelEvaluation(self.thresholds, self.device)

    def note_choices(self, checkpoint: dict[str, Any]) -> bool:
        """Put the thresholds into a checkpoint."""
        checkpoint["state_dict"]["thresholds"] = self.thresholds.cpu()
        checkpoint["encoder"] |= {"about": self.about_encoder()}
        return True

    def choose_thresholds(self) -> None:
        """Choose the threshold of each class on the images of the last evaluation."""
        self.thresholds.copy_(self.evaluation.best_thresholds())

    def scores(self) -> dict[str, Any]:
        """Return the scores of the last evaluation, ready for JSON."""
        return self.evaluation.scores(self.names)

    def evaluated_rows(self) -> dict[int, dict[str, str]]:
        """Return the row of each image of the last evaluation by its place in the data set."""
        has_views, thresholds = self.hparams.test_views != "none", self.thresholds.cpu()
        return evaluated_rows(self.evaluation.rows, thresholds, self.names, has_views=has_views)

    def about_encoder(self) -> dict[str, Any]:
        """Return the thresholds. A file that has some is of a model of independent classes."""
        return {"thresholds": self.thresholds.tolist()}

    @classmethod
    def tables(cls, scores: dict[str, Any], split: str | None) -> list[Table]:
        """Return the scores of the classes, the class of the lowest average precision first."""
        return class_table(scores, split, "lowest first", CLASS_SHARES)

    @classmethod
    def tables_of_images(cls, rows: Sequence[Mapping[str, str]], scores: dict[str, Any]) -> list[Table]:
        """Return the wrong labels that are farthest from their threshold."""
        return mistakes_table(rows, scores)

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw the last evaluation, and attention on images of its split, into a folder."""
        draw_multilabel(self, folder, split, image_set)

    @torch.compiler.set_stance("force_eager")
    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Return the probability of each class for the readable images of a batch, (B, num_classes)."""
        images, files, _ = batch
        return self(images).float().sigmoid() if files else torch.empty(0, self.network.num_classes)

    def prediction_rows(self, outputs: Tensor) -> list[dict[str, str]]:
        """Return the classes at or above their thresholds, and the five most probable ones: (B, num_classes)."""
        return predicted_rows(outputs.cpu(), self.thresholds.cpu(), self.names)
