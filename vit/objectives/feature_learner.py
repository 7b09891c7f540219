"""The base of objectives that need no labels: their features are evaluated at each validation."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from vit.data.module import ImageDataModule, ImageSet
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.feature_evaluation import FeatureEvaluation, describe_collapse
from vit.objectives.neighbours import draw_neighbours
from vit.training.description import Picture, Score
from vit.training.encoder_module import EncoderModule
from vit.training.evaluated_images import is_of_data
from vit.training.objective import Objective

FEATURE_SCORES = (
    Score(
        "knn_accuracy",
        "Accuracy of neighbours",
        note="each image by the nearest others among the evaluated, at most 5,000",
    ),
    Score("effective_rank", "Effective rank", unit="", note="directions in which the features vary"),
    Score("feature_std", "Standard deviation", unit="", note="of the normalised features, from 0 to 1"),
)


class FeatureLearner(Objective, EncoderModule):
    """Learns features of images without labels. Classes, if there are any, are used by the evaluation alone.

    Args:
        kwargs: Training, and the VisionTransformer that computes the features.

    Raises:
        ValueError: If an argument is out of its range.
    """

    columns = FEATURE_SCORES
    pictures = (
        Picture("neighbours", "Neighbours", "Images, each before the images of the nearest features", "row", True),
    )
    encoder = "network.encoder"
    from_data = (*Objective.from_data, "mean", "std")
    prediction_columns = ()
    needs_labels = False
    fewest_images = 1
    """The smallest batch, over all processes, that the loss can be computed for."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(num_classes=0, **kwargs)
        self.hparams.pop("num_classes", None)  # users do not choose it
        self.has_warned_of_collapse = False

    @property
    def judged(self) -> VisionTransformer:
        """The Vision Transformer whose features are evaluated."""
        return self.get_submodule(self.encoder)

    @abstractmethod
    def losses(self, images: Tensor, is_real: Tensor, batch_idx: int) -> Tensor:
        """Return the loss of each image of an evaluation, with the same random choices each time: (B, ...) -> (B,).

        ``is_real``, boolean (B,), is False for padding.
        """

    def prepare_data(self) -> None:
        """Check that no prediction is asked for, before a callback begins its file.

        Raises:
            ValueError: If one is.
        """
        if self.trainer.state.fn == TrainerFn.PREDICTING:
            raise self._predicts_nothing()

    def _predicts_nothing(self) -> ValueError:
        return ValueError(
            f"{type(self).__name__} predicts no labels: vit-attention features writes the features of images"
        )

    def setup(self, stage: str) -> None:
        """Check that the data fit.

        Raises:
            ValueError: If images are blended, classes are weighted, a batch is too small, or a prediction is asked for.
        """
        if stage == "predict":  # prepare_data may be overridden, and runs in one process
            raise self._predicts_nothing()
        name = type(self).__name__
        data = None if self._trainer is None else self.trainer.datamodule
        if stage != "fit" or not isinstance(data, ImageDataModule):
            return
        if data.balance == "loss":
            raise ValueError(f"balance 'loss' weights classes, and {name} has none: take 'sampling' or 'none'")
        for option in ("mixup", "cutmix"):
            if alpha := data.augmentation[option]:
                raise ValueError(f"{option} ({alpha}) blends images for a classifier, and {name} is none: set it to 0")
        images = min(data.batch_size * self.trainer.world_size, len(data.sets["train"].labels))
        if images < self.fewest_images:
            raise ValueError(
                f"a batch of {images} is too small for {name}, which compares images: take a batch_size of "
                f"{self.fewest_images} or more, 64 is usual, and as many images"
            )

    def features(self, images: Tensor) -> Tensor:
        """Compute what a head would read of images, uint8 or float in [0, 1]: (B, C, H, W) -> (B, num_features)."""
        encoder = self.judged
        return encoder.forward_head(encoder.forward_features(self.normalise(images)), pre_logits=True)

    def new_evaluation(self) -> FeatureEvaluation:
        """Return an evaluation of no images."""
        return FeatureEvaluation(self.judged.num_features, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, labels = batch
        place = self.place(batch_idx)
        is_real = is_of_data(place, images)
        losses = self.losses(images, is_real, batch_idx).float()[is_real]
        self.evaluation.update(self.features(images), losses, labels, is_real, place)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log the monitored score, the loss and the scores of the features over all processes."""
        self._evaluate("val")
        super().on_validation_epoch_end()
        self._log_features("val")

    def on_test_epoch_end(self) -> None:
        """Log the monitored score, the loss and the scores of the features over all processes."""
        self._evaluate("test")
        super().on_test_epoch_end()
        self._log_features("test")

    def _evaluate(self, split: str) -> None:
        data = self.trainer.datamodule
        self.evaluation.gather(data.sets[split].groups if isinstance(data, ImageDataModule) else None)

    def _log_features(self, split: str) -> None:
        scores = self.evaluation.scores()
        logged = {
            f"{split}_{score.name}": scores[score.name] for score in self.columns if score.name != self.monitor.name
        }
        # Equal on all processes already; without sync_dist, Lightning warns.
        self.log_dict({name: value for name, value in logged.items() if value is not None}, sync_dist=True)

    def on_validation_end(self) -> None:
        """Print the scores of the features after a validation, and a warning when they first collapse."""
        if self.trainer.state.fn != TrainerFn.FITTING or self.trainer.sanity_checking or self.global_rank != 0:
            return
        scores = self.scores()
        print(f"  features: {'; '.join(self.described(scores))}", flush=True)
        for note in self.notes(scores) if not self.has_warned_of_collapse else ():
            self.has_warned_of_collapse = True
            print(f"warning: {note}", flush=True)

    @classmethod
    def described(cls, scores: dict[str, Any]) -> list[str]:
        """Return the scores of the features in words."""
        known = [score for score in FEATURE_SCORES if scores.get(score.name) is not None]
        return [f"{score.label.lower()} {score.text(scores[score.name])}".replace("\u00a0", " ") for score in known]

    @classmethod
    def notes(cls, scores: dict[str, Any]) -> list[str]:
        """Return a warning if the features have collapsed."""
        said = describe_collapse(scores)
        return [] if said is None else [said]

    @classmethod
    def result_lines(cls, results: dict[str, Any]) -> list[str]:
        """Return a line with the scores of the features, and a warning if they have collapsed."""
        scores = results.get("scores") or {}
        described = cls.described(scores)
        return [*(["features: " + "; ".join(described)] if described else []), *cls.notes(scores)]

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw images of the split beside those of the nearest features, into a folder."""
        draw_neighbours(self.evaluation.rows, image_set, split, folder / "neighbours.png")

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        """Do nothing: ``prepare_data`` refuses predictions."""

    def prediction_rows(self, outputs: Any) -> list[dict[str, str]]:
        """Return no rows: ``prepare_data`` refuses predictions."""
        return []
