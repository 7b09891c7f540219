"""The half of a LightningModule that validates, tests and predicts."""

from lightning import LightningModule
from torch import Tensor

from vit.training.evaluation import Evaluation
from vit.training.views import classify_views


class EvaluatedClassifier(LightningModule):
    """An image classifier whose accuracy and loss are those of all images, on any number of processes.

    Whoever derives from it gives ``forward``, the model as ``vit``, and the hyper-parameter ``test_views``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evaluation: Evaluation | None = None

    def on_validation_epoch_start(self) -> None:
        """Begin an evaluation."""
        self.evaluation = Evaluation(self.vit.num_classes, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, labels = batch
        self.evaluation.update(self(images), labels, images)

    def on_validation_epoch_end(self) -> None:
        """Log accuracy and loss over all processes."""
        self._log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        """Begin an evaluation."""
        self.on_validation_epoch_start()

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
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
        # The same on all processes by now; sync_dist only tells Lightning that someone saw to it.
        self.log_dict({f"{split}_accuracy": accuracy, f"{split}_loss": loss}, prog_bar=True, sync_dist=True)

    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Probabilities of the classes, (B, num_classes), for the images of a batch that could be read."""
        images, _, _ = batch
        return self(images).float().softmax(dim=-1)
