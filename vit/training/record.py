"""The record of a run: what it measured, as results.json and as lines on the screen."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from vit.training.flop import training_flop

# What results.json begins with, as long as nothing is measured.
ACCURACIES = {"test_accuracy": None, "test_accuracy_views": None, "test_views": "none", "val_accuracy": None}


class RunRecord(Callback):
    """Keep what a run measured, in its checkpoints and as ``results.json`` in its folder.

    Args:
        folder: The folder of the run.
        facts: What is known before the run begins, such as the seed and the command.
        config: All arguments of the run as YAML text, for ``config.yaml``.
        data: Arguments of the data module, kept in checkpoints so that these need no config.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], config: str, data: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.config = config
        self.data = data
        self.measured: dict[str, Any] = {"seconds": 0.0, "training_seconds": 0.0, "images": 0, "flop": 0}
        self.history: dict[str, list[dict[str, float]]] = {"train": [], "val": []}
        self.flop_per_image: dict[float, int] = {}  # by the share of patches left out
        self.flop_now = 0
        self.clock = self.last_batch_end = 0.0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run continues from."""
        return {"measured": self.measured, "history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a record."""
        self.measured.update(state_dict["measured"])
        self.history = state_dict["history"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the arguments of the run with its weights."""
        self._tick()
        checkpoint["data"] = self.data

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clocks, and write down how the run was made."""
        self.clock = self.last_batch_end = time.monotonic()
        if not trainer.fast_dev_run:
            self._write_config()
            self._print_header(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the time between epochs out of the training speed."""
        self.last_batch_end = time.monotonic()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the operations of this step, before it may be the last of its kind."""
        rate = pl_module.vit.patch_drop.rate
        if rate not in self.flop_per_image:
            self.flop_per_image[rate] = training_flop(pl_module.vit)
        self.flop_now = self.flop_per_image[rate]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the images, and note loss and learning rate whenever they were logged."""
        now = time.monotonic()
        self.measured["training_seconds"] += now - self.last_batch_end
        self.last_batch_end = now
        images = len(batch[0]) * trainer.world_size
        self.measured["images"] += images
        self.measured["flop"] += images * self.flop_now
        self._show_speed(trainer)
        noted = self.history["train"][-1]["step"] if self.history["train"] else 0
        every = trainer.log_every_n_steps
        is_due = trainer.is_last_batch or (every and trainer.global_step % every == 0)
        if is_due and trainer.global_step > noted:
            loss, rate = (float(trainer.callback_metrics[name]) for name in ("train_loss", "lr"))
            point = {"epoch": self._epoch(trainer), "step": trainer.global_step}
            self.history["train"].append({**point, "loss": loss, "lr": rate})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the accuracy; while training, print a line and leave validation out of the training speed."""
        evaluation = pl_module.evaluation
        self.measured["val_accuracy"] = evaluation.accuracy
        if trainer.state.fn != TrainerFn.FITTING:
            self._write(trainer, pl_module)
            return
        self.last_batch_end = time.monotonic()
        point = {"epoch": self._epoch(trainer), "step": trainer.global_step}
        self.history["val"].append({**point, "loss": evaluation.loss, "accuracy": evaluation.accuracy})
        self._print_line(trainer)

    def validated_last(self, trainer: Trainer) -> bool:
        """Whether the weights of now have been validated."""
        return bool(self.history["val"]) and self.history["val"][-1]["step"] == trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record."""
        self._tick()
        self._write(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the test accuracy into the record."""
        evaluation, views = pl_module.evaluation, pl_module.hparams.test_views
        self.measured["test_accuracy"] = evaluation.accuracy
        self.measured["test_accuracy_views"] = None if views == "none" else evaluation.accuracy_views
        self.measured["test_views"] = views
        self._write(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep the results so far, and say how to go on."""
        if trainer.state.fn != TrainerFn.FITTING or not self.measured["images"]:
            return
        self._tick()
        try:
            self._write(trainer, pl_module, stopped=type(exception).__name__)
        except OSError as error:  # such as the full disk that stopped the run
            print(f"could not write the results so far: {error}")
        self._print_resume(trainer)

    @rank_zero_only
    def _write(self, trainer: Trainer, pl_module: LightningModule, stopped: str | None = None) -> None:
        if trainer.fast_dev_run:
            return
        path = self.folder / "results.json"
        results = json.loads(path.read_text()) if path.exists() else {}
        results |= self.facts if not results or trainer.state.fn == TrainerFn.FITTING else {}
        results |= {name: self.measured[name] for name in ACCURACIES if name in self.measured}
        if self.measured["images"]:
            results |= {
                "epochs": round(self._epoch(trainer), 2),
                "steps": trainer.global_step,
                "seconds": round(self.measured["seconds"], 1),
                "petaflop": round(self.measured["flop"] / 1e15, 4),
                "images_per_second": round(self.measured["images"] / max(self.measured["training_seconds"], 1e-9), 1),
            }
        if self.measured["images"] or "precision" not in results:  # of the training, not of a later test
            results |= {
                "parameters": sum(parameter.numel() for parameter in pl_module.vit.parameters()),
                "device": _device_name(pl_module.device),
                "devices": trainer.world_size,
                "precision": str(trainer.precision),
                "torch": torch.__version__,
            }
        results.pop("stopped", None)
        if stopped:
            results["stopped"] = stopped
        ordered = ACCURACIES | results
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(ordered, indent=2) + "\n")
        unfinished.replace(path)

    @rank_zero_only
    def _write_config(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.yaml").write_text(self.config)

    @rank_zero_only
    def _print_header(self, trainer: Trainer, pl_module: LightningModule) -> None:
        parameters = sum(parameter.numel() for parameter in pl_module.vit.parameters())
        sets = trainer.datamodule.sets
        sizes = ", ".join(f"{len(sets[name].labels):,} {name}" for name in ("train", "val", "test") if name in sets)
        print(
            f"{self.facts['data']}: {sizes} images; {parameters:,} parameters; {trainer.precision} on "
            f"{_device_name(pl_module.device)}; {self.folder}",
            flush=True,
        )

    @rank_zero_only
    def _print_line(self, trainer: Trainer) -> None:
        speed = self.measured["images"] / max(self.measured["training_seconds"], 1e-9)
        val = self.history["val"][-1]
        loss = f"train_loss {self.history['train'][-1]['loss']:.3f}  " if self.history["train"] else ""
        print(
            f"epoch {val['epoch']:.2f}  step {trainer.global_step:,}  {loss}val_loss {val['loss']:.3f}  "
            f"val_accuracy {100 * val['accuracy']:.2f} %  {speed:,.0f} images/s",
            flush=True,
        )

    @rank_zero_only
    def _print_resume(self, trainer: Trainer) -> None:
        last = self.folder / "checkpoints" / "last.ckpt"
        if last.exists():
            print(f"results so far: {self.folder / 'results.json'}")
            print(f"resume with: python train.py fit --ckpt_path {last}", flush=True)
        else:
            print("stopped before the first checkpoint: start again", flush=True)

    def _tick(self) -> None:
        now = time.monotonic()
        self.measured["seconds"] += now - self.clock
        self.clock = now

    def _epoch(self, trainer: Trainer) -> float:
        train_set = trainer.datamodule.sets["train"].labels
        return self.measured["images"] / len(train_set)

    def _show_speed(self, trainer: Trainer) -> None:
        bar = trainer.progress_bar_callback
        if hasattr(bar, "images_per_second"):
            bar.images_per_second = self.measured["images"] / max(self.measured["training_seconds"], 1e-9)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type
