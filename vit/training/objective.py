"""The base of all objectives: hyper-parameters, optimiser, schedule, the log of the loss, evaluation, resume."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from vit.data.module import ImageDataModule, ImageSet
from vit.support.checks import check_choice, check_non_negative, check_positive_share, check_share
from vit.support.kept_memory import keep_freed_memory
from vit.training.compilation import blocks_of, compile_for_training
from vit.training.description import Picture, Score, Table
from vit.training.ema import EMA
from vit.training.encoder_module import check_same_arguments, remedy_of_misfit
from vit.training.evaluated_images import places_in_evaluation
from vit.training.loader_batches import UserBatches
from vit.training.optimizer import Optimizer, make_optimizer
from vit.training.schedule import Decay, ProgressSchedule, TrainingLength, learning_rate_factor
from vit.weights import check_same_tensors
from vit.weights.checkpoint import upgrade


class Objective(LightningModule, ABC):
    """The base class of all objectives. A subclass defines a network on images, its loss and its evaluation.

    A subclass describes itself by the class attributes below; runs, report and command line read nothing else. If its
    network has a Vision Transformer, it inherits from ``EncoderModule`` as well, which builds it. Otherwise it builds
    ``network`` itself, and defines ``training_flop()``: the operations of a training step per image.

    Args:
        lr: Peak learning rate.
        weight_decay: Decoupled weight decay of the weight matrices; biases, norms, tokens and positions have none.
        optimizer: AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the rest. Muon reaches
            a higher accuracy in the same number of steps.
        betas: Decay of AdamW's averages of the gradient and of its square.
        warmup: Share of the training, in [0, 1), over which the learning rate rises from zero to its peak.
        decay: How the learning rate then falls to zero at the end of the training: along a cosine, linearly, or
            not at all. The training ends at trainer.max_epochs, max_steps or max_time, whichever comes first.
        ema_decay: Weight of the past in the moving average of the weights, such as 0.999. The average is then evaluated
            and saved; None evaluates and saves the weights themselves.
        kwargs: Arguments of the network.

    Attributes:
        network: The model that is trained.
        progress: Share of the training that is done, in [0, 1].
        data: The data module of the training.
        evaluation: The sums of the last evaluation, with ``loss``, ``count``, the monitored score, and ``sums()`` over
            processes.
        places: Places in the data set of the images of each batch of the last evaluation, (B,) each; [] if they are not
            known.

    Raises:
        ValueError: If a hyper-parameter is out of its range.
    """

    monitor: ClassVar[Score]
    """The score of validation images that chooses the best weights."""
    columns: ClassVar[tuple[Score, ...]] = ()
    """Further scores, which the report shows."""
    pictures: ClassVar[tuple[Picture, ...]] = ()
    """The pictures that ``draw`` draws, in the order of the report."""
    test_fields: ClassVar[dict[str, Any]] = {}
    """Further fields of ``results.json`` about a test, with their values before it."""
    encoder: ClassVar[str | None]
    """Name of the Vision Transformer inside, such as "network.encoder"; None if there is none."""
    from_data: ClassVar[tuple[str, ...]] = ("image_size", "in_channels")
    """Arguments that the data decides: attributes of the data module."""
    stretches_images: ClassVar[bool] = False
    """Whether predicted images are scaled to the size of the input whatever their aspect ratio, and not cropped."""
    prediction_columns: ClassVar[tuple[str, ...]]
    """Columns of the CSV file of ``predict`` after the file."""
    needs_labels: ClassVar[bool] = True
    """Whether each image of a batch needs a label. Without, a loader may give images alone."""
    is_shardable: ClassVar[bool] = True
    """Whether a strategy may shard the weights. False if the training calls parts of the network directly: only
    ``network.forward`` gathers their shards."""
    network: nn.Module

    def __init__(
        self,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        optimizer: Optimizer = "adamw",
        betas: tuple[float, float] = (0.9, 0.99),
        warmup: float = 0.05,
        decay: Decay = "cosine",
        ema_decay: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters()
        self.check_hyperparameters()
        self.progress = 0.0
        self.length: TrainingLength | None = None
        self.length_before: Mapping[str, float] | None = None  # of a resumed training
        self.data: ImageDataModule | None = None
        self.evaluation: Any = None
        self.places: list[Tensor] = []
        self.user_batches = UserBatches()

    def check_hyperparameters(self) -> None:
        """Check the hyper-parameters of the training."""
        hp = self.hparams
        check_non_negative("lr", hp.lr, "1e-3 is usual")
        check_non_negative("weight_decay", hp.weight_decay, "0.05 is usual, 0 turns it off")
        for beta in hp.betas:
            check_share("betas", beta, "0.9 and 0.99 are usual")
        if hp.get("layer_decay") is not None:
            check_positive_share("layer_decay", hp.layer_decay, "0.75 is usual, null gives all blocks the same rate")
        check_share("warmup", hp.warmup, "it is a share of the training, such as 0.05")
        for name, kind in (("optimizer", Optimizer), ("decay", Decay)):
            check_choice(name, hp[name], get_args(kind))

    @abstractmethod
    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss of a batch of images and targets."""

    @abstractmethod
    def new_evaluation(self) -> Any:
        """Return the sums of an evaluation over no images."""

    @abstractmethod
    def prediction_rows(self, outputs: Any) -> list[dict[str, str]]:
        """Return a row of ``prediction_columns`` for each output of ``predict_step``."""

    def scores(self) -> dict[str, Any]:
        """Return the scores of the last evaluation, ready for JSON."""
        return self.evaluation.scores()

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw ``pictures`` of the last evaluation, on the images of a split, into a folder."""

    def draw_validation(self, folder: Path, split: str, image_set: ImageSet) -> list[Path]:
        """Draw what each validation during the training shows, into a folder, and return the files: none by default."""
        return []

    def results(self, split: str) -> dict[str, Any]:
        """Return what ``results.json`` holds of the last evaluation, besides its scores."""
        return {f"{split}_{self.monitor.name}": getattr(self.evaluation, self.monitor.name)}

    def about_encoder(self) -> dict[str, Any]:
        """Return what ``vit.load`` adds to the ``pretrained_cfg`` of the encoder."""
        return {"stretch": True} if self.stretches_images else {}

    def evaluated_rows(self) -> dict[int, dict[str, str]]:
        """Return the row of each image of the last evaluation, by its place in the data set.

        The first columns are the truth; those of ``prediction_columns`` follow. Without rows, no table is written.
        """
        return {}

    @classmethod
    def result_lines(cls, results: dict[str, Any]) -> list[str]:
        """Return the lines that a run prints from its ``results.json``, besides those of the monitored score."""
        return []

    @classmethod
    def notes(cls, scores: dict[str, Any]) -> list[str]:
        """Return the sentences that console and report add to the scores, such as which classes have no images."""
        return []

    @classmethod
    def tables(cls, scores: dict[str, Any], split: str | None) -> list[Table]:
        """Return the tables of the report for the scores of a split."""
        return []

    @classmethod
    def tables_of_images(cls, rows: Sequence[Mapping[str, str]], scores: dict[str, Any]) -> list[Table]:
        """Return the tables of the report for the rows of tested images, whose column "file" names them."""
        return []

    @property
    def drop_rate(self) -> float:
        """Share of the patches that is dropped at present."""
        return 0.0

    def relative_settings(self) -> dict[str, bool]:
        """Return the settings that are measured as a share of the training, and whether each is in use."""
        hp = self.hparams
        return {
            "warmup": hp.warmup > 0,
            f"decay {hp.decay}": hp.decay != "constant",
            "mix_until": self.data is not None and self.data.mix_until < 1,
        }

    def configure_model(self) -> None:
        """Shard the blocks if the strategy does so, then compile the network; a second call does nothing.

        Raises:
            ValueError: If the strategy does so, and the objective needs whole weights.
        """
        if self.device_mesh is not None:
            self.check_shardable()
        if self.device_mesh is not None and not hasattr(self.network, "unshard"):
            for module in (*blocks_of(self.network), self.network):
                fully_shard(module, mesh=self.device_mesh["data_parallel"])
        if self.hparams.get("compile"):
            device = self.device if self._trainer is None else self.trainer.strategy.root_device
            compile_for_training(self.network, device)

    @classmethod
    def check_shardable(cls, strategy: str = "fsdp2") -> None:
        """Check that a strategy that shards the weights can train this objective.

        Raises:
            ValueError: If the objective needs whole weights.
        """
        if not cls.is_shardable:
            raise ValueError(
                f"strategy {strategy} shards the weights, and {cls.__name__} needs them whole: take strategy ddp"
            )

    def configure_callbacks(self) -> list[Callback]:
        """Return the moving average of the weights, if ``ema_decay`` asks for it.

        Raises:
            ValueError: If a callback would unfreeze weights that the optimiser and the schedule know already.
        """
        callbacks = [] if self._trainer is None else self.trainer.callbacks
        if not hasattr(self, "backbone") and any(isinstance(each, BackboneFinetuning) for each in callbacks):
            raise ValueError(
                "BackboneFinetuning looks for a backbone beside the head, and adds its weights to the optimiser later; "
                "here both are one network: freeze=N of ViTClassifier keeps its first N blocks as they are"
            )
        return [] if self.hparams.ema_decay is None else [EMA(self.hparams.ema_decay)]

    def on_train_start(self) -> None:
        """Start the schedule and the mean of the training loss.

        Raises:
            ValueError: If a setting is a share of the training, and the training has no end, or a callback would add
                weights to the optimiser later.
        """
        if self.schedule is not None and any(isinstance(each, BackboneFinetuning) for each in self.trainer.callbacks):
            raise ValueError(
                "BackboneFinetuning adds weights to the optimiser during the training, and its schedule knows those of "
                "the start alone: return an optimiser of your own from configure_optimizers"
            )
        if self.device.type == "cpu":
            keep_freed_memory()
        # Not in configure_optimizers: there, TrainingLength would make Lightning build the loader before it restores
        # the position in the epoch.
        self.length = TrainingLength(self.trainer)
        self.data = self.trainer.datamodule if isinstance(self.trainer.datamodule, ImageDataModule) else None
        if self.length_before is not None and self.trainer.global_step:
            self.length.continue_from(self.length_before, self.trainer.global_step)
        _check_validations(self.trainer)
        self.length.check_end([name for name, is_used in self.relative_settings().items() if is_used])
        self._update_progress()
        if self.schedule is not None:
            self.schedule.restore_settings(self.hparams.lr)
        self.user_batches.is_first = True
        self._reset_loss()

    def on_predict_start(self) -> None:
        """Let the first batch tell whether images are normalised."""
        self.user_batches.is_first = True

    def _apply_batch_transfer_handler(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert batches of other loaders. Not in on_after_batch_transfer, which a data module may override."""
        return self.user_batches.take(super()._apply_batch_transfer_handler(batch, *args, **kwargs), self)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> int | None:
        """End an epoch without batches, which Lightning starts after a resume from the end of an epoch."""
        return -1 if batch_idx >= self.trainer.num_training_batches else None

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch, and log the mean loss every ``log_every_n_steps`` steps."""
        loss = self.training_loss(batch)
        # Summed on the device and logged every log_every_n_steps: each call of self.log takes 0.3 ms.
        self.loss_sum += loss.detach()
        self.loss_count += 1
        trainer = self.trainer
        # Lightning also steps after the last batch of an epoch, however few have accumulated.
        is_step = trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        every = trainer.log_every_n_steps
        is_due = is_step and every and (trainer.global_step + 1) % every == 0
        if is_due or trainer.is_last_batch:
            self.log("train_loss", self.loss_sum / self.loss_count, prog_bar=True)
            self.log("lr", trainer.optimizers[0].param_groups[-1]["lr"])
            if is_due or not every:  # Lightning's loggers drop the value of a last batch that is not due
                self._reset_loss()
        return loss

    def mean_of_counted(self, losses: Tensor, counted: Tensor) -> Tensor:
        """Return the mean of the losses that are counted, over the batches of all processes together.

        DDP averages gradients over processes, which count different numbers of tokens. So each process divides its sum
        by the mean count.

        Args:
            losses: A loss for each token or pixel.
            counted: Which of them count, boolean, of the same shape.
        """
        return self.mean_of_all((losses * counted).sum(), counted.sum().float())

    def mean_of_all(self, total: Tensor, count: Tensor) -> Tensor:
        """Return a sum over the batch, divided by the mean count of a process; DDP then averages over processes."""
        if self._trainer is not None:
            count = self.trainer.strategy.reduce(count, reduce_op="mean")
        return total / count

    def _reset_loss(self) -> None:
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss_count = 0

    def on_validation_epoch_start(self) -> None:
        """Start an evaluation, and note which images are in each batch."""
        self.user_batches.is_first = True
        self.evaluation = self.new_evaluation()
        self.places = places_in_evaluation(self.trainer)

    on_test_epoch_start = on_validation_epoch_start

    def place(self, batch_idx: int) -> Tensor | None:
        """Return the place in the data set of each image of a batch of the evaluation; None if it is not known."""
        return self.places[batch_idx] if self.places else None

    def on_validation_epoch_end(self) -> None:
        """Log the monitored score and the loss over all processes."""
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        """Log the monitored score and the loss over all processes."""
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        for tensor in self.evaluation.sums():
            tensor.copy_(self.trainer.strategy.reduce(tensor, reduce_op="sum"))
        name, loss = self.monitor.name, self.evaluation.loss
        # Equal on all processes already; without sync_dist, Lightning warns.
        logged = {f"{split}_{name}": getattr(self.evaluation, name), f"{split}_loss": loss}
        self.log_dict(logged, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        """Return the optimiser, and a learning rate that each step sets from the progress of the training.

        Raises:
            ValueError: If Muon is asked for and the model is sharded.
        """
        hp = self.hparams
        if hp.optimizer == "muon" and self.device_mesh is not None:
            raise ValueError(
                "optimizer muon needs whole matrices, and this model is sharded: choose adamw, or strategy ddp"
            )
        optimizer = make_optimizer(hp.optimizer, self.network, hp.lr, hp.weight_decay, hp.betas, hp.get("layer_decay"))
        schedule = ProgressSchedule(optimizer, self._learning_rate_factor, hp.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def schedule(self) -> ProgressSchedule | None:
        """The schedule by the progress of the training; None if the user sets another optimiser or schedule."""
        schedulers = (config.scheduler for config in self.trainer.lr_scheduler_configs)
        return next((each for each in schedulers if isinstance(each, ProgressSchedule)), None)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Update the progress after each step of the optimiser, and the learning rate with it."""
        if isinstance(scheduler, ProgressSchedule):
            self._update_progress()
        super().lr_scheduler_step(scheduler, metric)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the progress if Lightning does not step our schedule."""
        if self.schedule is None or not self.automatic_optimization:
            self._update_progress()
            if self.schedule is not None:
                self.schedule.step()

    def _learning_rate_factor(self, step: int) -> float:
        return learning_rate_factor(self.progress, self.hparams.warmup, self.hparams.decay)

    def _update_progress(self) -> None:
        """Update the progress, and pass it to the data, whose mixing may end early."""
        self.progress = self.length.progress(self.trainer.global_step, self.trainer.strategy)
        if self.data is not None:
            self.data.progress = self.progress

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the name of the class, for the command line, and the encoder's arguments, for ``vit.load``.

        The weights are the average if there is one.
        """
        for callback in self.trainer.callbacks if self._trainer is not None else ():
            if isinstance(callback, EMA):
                callback.save_average(self, checkpoint)
        checkpoint |= {"module": type(self).__name__, "encoder": None, "normalised": self.user_batches.normalised}
        if self.length is not None:
            checkpoint["length"] = self.length.state_dict()
        if self.encoder is not None:
            arguments = dict(self.get_submodule(self.encoder).config)
            about = {"arguments": arguments, "about": self.about_encoder()}
            checkpoint["encoder"] = {"prefix": f"{self.encoder}."} | about

    def note_choices(self, checkpoint: dict[str, Any]) -> bool:
        """Put what the last validation chose, such as thresholds, into a checkpoint; return whether there is any."""
        return False

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint fits this model, and keep what a resume needs. torch's own messages are longer.

        Raises:
            ValueError: If the checkpoint has other classes, another architecture, or for a resume the state of another
                optimiser.
        """
        upgrade(checkpoint)  # for load_from_checkpoint, which reads the file itself
        self.check_fits(checkpoint)
        self.take_notes(checkpoint)
        self.length_before = checkpoint.get("length")
        is_resumed = self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        if self.hparams.ema_decay is None and is_resumed:
            # The optimiser's state belongs to the training weights, not to their average. A sharded model has them.
            checkpoint.get("state_dict", {}).update(checkpoint.get("training_weights", {}))
        before = checkpoint["hyper_parameters"]
        for name in ("optimizer", "layer_decay", "freeze") if is_resumed else ():
            if name in before and before[name] != self.hparams.get(name):
                raise ValueError(
                    f"the checkpoint was trained with {name} {before[name]!r}, whose state does not fit {name} "
                    f"{self.hparams[name]!r}: leave --model.{name} as it was"
                )

    def take_notes(self, checkpoint: dict[str, Any]) -> None:
        """Take the settings of an evaluation, such as thresholds, from a checkpoint. Foreign weights have none."""
        self.user_batches.normalised = checkpoint.get("normalised")

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint has the architecture of this model.

        Raises:
            ValueError: If the architecture differs.
        """
        if self.device_mesh is None:
            remedy = remedy_of_misfit(checkpoint["hyper_parameters"], self.hparams)
            check_same_tensors(self, checkpoint["state_dict"], "the checkpoint", remedy)
        if self.encoder is not None and checkpoint.get("encoder"):
            check_same_arguments(checkpoint["encoder"]["arguments"], self.get_submodule(self.encoder).config)


def _check_validations(trainer: Trainer) -> None:
    """Check that no validation lies between two steps: its checkpoint would lack the gradients so far."""
    accumulated, interval = trainer.accumulate_grad_batches, trainer.val_check_batch
    batches = trainer.num_training_batches
    # Without an end of epochs, an interval counts the batches of all epochs, each of which ends with a step.
    counted = (interval,) if trainer.check_val_every_n_epoch is not None else (interval, batches)
    if interval != batches and any(count % accumulated for count in counted if count != float("inf")):
        raise ValueError(
            f"a validation after every {interval} of {batches} batches lies between two steps of {accumulated} batches "
            "(accumulate_grad_batches), and its checkpoint would lack the gradients so far: take a val_check_interval "
            f"that is a multiple of {accumulated}"
        )
