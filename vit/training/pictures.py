"""The pictures of a run, beside its results.json."""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from vit.data.module import Stage
from vit.training.examples import draw_rollout
from vit.training.figures import draw_confusion, draw_curves, draw_mistakes
from vit.training.record import RunRecord


class RunPictures(Callback):
    """Draw the curves of a training, what was confused, the worst mistakes, and what is attended to.

    Args:
        record: The record of the run. It comes after this among the callbacks, so that how to go on is said last.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the curves, and the last validation."""
        self._draw_curves(trainer)
        if pl_module.evaluation is not None:
            self._draw_evaluation(pl_module.evaluation, trainer, "validation")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show what is attended to, unless a test will; only now the module holds the moving average for good."""
        sets = trainer.datamodule.sets
        if "val" in sets and not ("test" in sets and trainer.limit_test_batches):
            self._draw_attention(trainer, pl_module, "val")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw a validation that was asked for, not those on the way."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._draw_evaluation(pl_module.evaluation, trainer, "validation")
            self._draw_attention(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the test."""
        self._draw_evaluation(pl_module.evaluation, trainer, "test")
        self._draw_attention(trainer, pl_module, "test")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Draw the curves so far."""
        if trainer.state.fn == TrainerFn.FITTING:
            try:
                self._draw_curves(trainer)
            except OSError as error:  # such as the full disk that stopped the run
                print(f"could not draw the curves so far: {error}", flush=True)

    @rank_zero_only
    def _draw_curves(self, trainer: Trainer) -> None:
        if self.record.history["train"] and not trainer.fast_dev_run:
            draw_curves(self.record.history, self._file("curves.png"))

    @rank_zero_only
    def _draw_evaluation(self, evaluation: Any, trainer: Trainer, split: str) -> None:
        if trainer.fast_dev_run:
            return
        names = trainer.lightning_module.hparams.class_names
        names = names or [str(number) for number in range(len(evaluation.confusion))]
        summary = f"{split}: {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} images correct"
        draw_confusion(evaluation, names, summary, self._file("confusion_matrix.png"))
        title = f"The most confident mistakes on the {split} images"
        draw_mistakes(evaluation, names, title, self._file("mistakes.png"))

    @rank_zero_only
    def _draw_attention(self, trainer: Trainer, pl_module: LightningModule, stage: Stage) -> None:
        if trainer.fast_dev_run:
            return
        names, path = pl_module.hparams.class_names, self._file("attention.png")
        split = "validation" if stage == "val" else stage
        try:
            draw_rollout(pl_module, trainer.datamodule.sets[stage], names, f"Attention rollout on {split} images", path)
        except Exception as error:  # whatever it is, a picture is not worth a training
            print(f"no attention.png: {' '.join(str(error).split())}", flush=True)

    def _file(self, name: str) -> Path:
        self.record.folder.mkdir(parents=True, exist_ok=True)
        return self.record.folder / name
