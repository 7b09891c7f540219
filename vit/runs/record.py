"""The record of a run: what a training measures goes to its checkpoints, to results.json and to the console."""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from vit.runs.console import (
    print_header,
    print_memory,
    print_plan,
    print_policy,
    print_resume,
    print_stop,
    print_validation,
)
from vit.runs.divergence import describe_divergence
from vit.runs.measurements import Measurements
from vit.runs.parts import draw_parts
from vit.runs.results import epochs_done, write_results
from vit.support.files import replacing


class RunRecord(Callback):
    """Measure a run, and pass its measurements to checkpoints, ``results.json`` and the console.

    Args:
        folder: The folder of the run.
        facts: What is known before the run begins, such as the seed and the command.
        config: All arguments of the run as YAML text, for ``config.yaml``.
        data: Arguments of the data module, kept in checkpoints so that loading one needs no config.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], config: str, data: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.config = config
        self.data = data
        self.measurements = Measurements()
        self.flop_per_image: dict[float, int] = {}  # by the share of patches that are dropped
        self.flop_now = 0
        self.scored: str | None = None  # which images the last evaluation was of
        self.is_first = True  # until the first step of this process is done

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Draw the parts of images that are measured, and write ``config.yaml``.

        The config is there before a resumed run copies its first checkpoint, as resuming needs both.
        """
        if parts := draw_parts(trainer):
            self.facts["parts"] = self.facts.get("parts", {}) | parts
        if stage == "fit" and not trainer.fast_dev_run:
            self._write_config()

    @rank_zero_only
    def _write_config(self) -> None:
        with replacing(self.folder / "config.yaml") as unfinished:
            unfinished.write_text(self.config, encoding="utf-8")

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements."""
        return {"measured": self.measurements.measured, "history": self.measurements.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the measurements of a checkpoint."""
        self.measurements.measured |= state_dict["measured"]
        self.measurements.history = state_dict["history"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the arguments of the data module to the checkpoint."""
        self.measurements.update_seconds()
        checkpoint["data"] = self.data

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks, and print the header."""
        self.measurements.start_clocks()
        if not trainer.fast_dev_run:
            print_header(self.facts, self.folder, trainer, pl_module)
            print_plan(trainer, pl_module, self._flop_of(pl_module))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the time between epochs out of the training speed, and print that a policy begins."""
        print_policy(trainer)
        self.measurements.skip_pause()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the operations per image before the step, after which the drop rate may change."""
        self.flop_now = self._flop_of(pl_module)

    def _flop_of(self, pl_module: LightningModule) -> int:
        """Return the operations per image at the present drop rate."""
        rate = pl_module.drop_rate
        if rate not in self.flop_per_image:
            self.flop_per_image[rate] = pl_module.training_flop()
        return self.flop_per_image[rate]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the images, and note the loss and the learning rate if they were logged."""
        measurements = self.measurements
        measurements.count_batch(len(batch[0]) * trainer.world_size, self.flop_now)
        bar = trainer.progress_bar_callback
        if hasattr(bar, "images_per_second"):
            bar.images_per_second = measurements.images_per_second
        every = trainer.log_every_n_steps
        if self.is_first and trainer.global_step and not trainer.fast_dev_run:
            self.is_first = False
            print_memory(trainer, pl_module, len(batch[0]))
        is_logged = trainer.is_last_batch or (every and trainer.global_step % every == 0)
        logged = trainer.callback_metrics
        if is_logged and trainer.global_step > (measurements.last_step("train") or 0) and "train_loss" in logged:
            loss, rate = (float(logged.get(name, 0.0)) for name in ("train_loss", "lr"))
            self._note("train", trainer, loss=loss, lr=rate)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the monitored score; during training, print a line and leave validation out of the training speed."""
        found = pl_module.results("val")
        if trainer.sanity_checking:
            return
        self.measurements.measured |= found
        self.scored = "validation"
        if trainer.state.fn != TrainerFn.FITTING:
            self.write_results(trainer, pl_module)
            return
        self.measurements.skip_pause()
        monitor = pl_module.monitor
        score = found[f"val_{monitor.name}"]
        self._note("val", trainer, loss=pl_module.evaluation.loss, **{monitor.name: score})
        print_validation(self.measurements, monitor)

    def _note(self, split: str, trainer: Trainer, **values: float) -> None:
        epoch = epochs_done(trainer, self.measurements)
        self.measurements.history[split].append({"epoch": epoch, "step": trainer.global_step, **values})

    def note_best(self, monitor: str, score: Tensor | None, pl_module: LightningModule) -> None:
        """Note the validation score of the best weights, which are tested, in place of that of the last step.

        ``monitor`` is what chose the weights; by another score, the monitored one is not known of them.
        """
        if score is not None:  # else the last weights are the best
            name = f"val_{pl_module.monitor.name}"
            self.measurements.measured[name] = float(score) if monitor == name else None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``results.json``, and print why the training was stopped early, if it was."""
        self.measurements.update_seconds()
        self.write_results(trainer, pl_module)
        print_stop(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``results.json`` with the scores of the test images."""
        self.measurements.measured |= pl_module.results("test")
        self.scored = "test"
        self.write_results(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the results so far of a stopped training, and print how to resume it, also from the test at its end."""
        if not self.measurements.measured["images"]:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            self.measurements.update_seconds()
            try:
                self.write_results(trainer, pl_module, stopped=type(exception).__name__)
            except OSError as error:  # such as the full disk that stopped the run
                print(f"could not write the results so far: {error}")
        print_resume(self.folder)

    @rank_zero_only
    def write_results(self, trainer: Trainer, pl_module: LightningModule, **ending: Any) -> None:
        """Write ``results.json``; ``ending`` says how the run ended."""
        if trainer.fast_dev_run:
            return
        scores = None
        if pl_module.evaluation is not None and "stopped" not in ending:  # a stop may have cut an evaluation short
            scores = pl_module.scores()
            train, classes = self.measurements.history["train"], getattr(trainer.datamodule, "num_classes", 0)
            trained = self.measurements.measured["images"]
            if trained and (said := describe_divergence(train, float(pl_module.evaluation.loss), classes)):
                ending["diverged"] = said
        ending = {"scores": scores, "scored": self.scored if scores else None} | ending
        write_results(self.folder / "results.json", self.facts, self.measurements, trainer, pl_module, ending)
