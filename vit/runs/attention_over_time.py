"""A callback that shows how attention changes during training.

Letters in the einops patterns: b batch, h heads.
"""

from pathlib import Path

import torch
from einops import reduce
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from vit.analysis.measures import attention_distance, attention_entropy
from vit.capture.anatomy import examine
from vit.explain import capture_attention
from vit.explain.figures import draw_maps
from vit.explain.maps import Subject, signed_map
from vit.model.vision_transformer import VisionTransformer
from vit.runs.logged_pictures import log_pictures
from vit.runs.record import RunRecord
from vit.runs.splits import is_users_own, splits_of
from vit.support.checks import check_positive_int
from vit.training.example_images import ACROSS, captions_of, first_of_each_class, model_copy

MOST_EPOCHS = 8  # that are drawn side by side


class AttentionMaps(Callback):
    """Draw the attention rollout on the same few validation images after each validation.

    The rollout goes to ``attention/epoch_0003.png`` in the folder of the run and to the loggers that take images.
    ``metrics.csv`` gets the mean over the heads of each layer of ``attention_distance`` (in pixels) and
    ``attention_entropy`` (0 to 1), except for layers with negative weights, as in differential attention.
    ``attention_over_time.png`` shows up to eight epochs at the end. The trained weights are the same as without the
    callback. If attention cannot be captured, the callback prints the reason and does nothing more.

    Args:
        num_images: Number of images: the first of each class, then the second of each.
        every_n_epochs: Number of epochs from one drawing to the next.

    Raises:
        ValueError: If an argument is no positive whole number.
    """

    def __init__(self, num_images: int = 4, every_n_epochs: int = 1) -> None:
        for name, value in (("num_images", num_images), ("every_n_epochs", every_n_epochs)):
            check_positive_int(name, value)
        self.num_images = num_images
        self.every_n_epochs = every_n_epochs
        self.maps: dict[int, Tensor] = {}
        self.cells: Tensor | None = None
        self.active = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the folder."""
        record = next((callback for callback in trainer.callbacks if isinstance(callback, RunRecord)), None)
        # Read on all processes, as Lightning broadcasts it.
        log_dir = trainer.log_dir or trainer.default_root_dir
        self.folder = Path(log_dir) if record is None else record.folder
        self.active = trainer.is_global_zero and not trainer.fast_dev_run
        self.pixels, self.labels = None, None
        if self.active and not isinstance(getattr(pl_module, "network", None), VisionTransformer):
            self._switch_off(f"it draws classifiers, and this is a {type(pl_module).__name__}")
        # Of a user's own loaders, Lightning makes those for validation later.
        if self.active and not is_users_own(trainer.datamodule) and "val" not in trainer.datamodule.sets:
            self._switch_off("there are no validation images")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the images once, and draw the rollout of the validated weights: the moving average if there is one."""
        epoch = trainer.current_epoch + 1
        training = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if not (self.active and training) or epoch % self.every_n_epochs:
            return
        try:
            if self.pixels is None:
                self.pixels, self.labels = first_of_each_class(splits_of(trainer)["val"], self.num_images)
            self._draw_epoch(trainer, pl_module, epoch)
        except Exception as error:  # of any kind: a picture must not end a training
            self._switch_off(str(error))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw some of the epochs side by side."""
        if not self.active or not self.maps:
            return
        epochs = sorted(self.maps)
        places = torch.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().int().tolist()
        maps = {f"epoch {epochs[place]}": self.maps[epochs[place]] for place in places}
        path, title = self.folder / "attention_over_time.png", "Rollout (any class) over time"
        try:
            draw_maps(self.pixels, maps, path, title=title, cells=self.cells)
        except Exception as error:
            self._switch_off(str(error))

    def _draw_epoch(self, trainer: Trainer, pl_module: LightningModule, epoch: int) -> None:
        path = self.folder / "attention" / f"epoch_{epoch:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with model_copy(pl_module, self.pixels) as (model, images):
            subject = Subject(model, images)
            self.maps[epoch], self.cells = signed_map("rollout", subject).cpu(), subject.cell_of_pixel.cpu()
            with torch.no_grad():
                logits, measures = _measure(model, images)
        draw_maps(
            self.pixels,
            {"rollout": self.maps[epoch]},
            path,
            **captions_of(logits, self.labels, pl_module.hparams.class_names),
            title=f"After epoch {epoch}, on validation images",
            across=min(ACROSS, self.num_images),
            cells=self.cells,
        )
        for logger in trainer.loggers:
            # self.log would have to be called by all processes.
            logger.log_metrics(measures | {"epoch": trainer.current_epoch}, trainer.global_step)
        log_pictures(trainer.loggers, [path], trainer.global_step, name="attention_of_epoch")

    def _switch_off(self, reason: str) -> None:
        self.active = False
        print(f"AttentionMaps is switched off: {' '.join(reason.split())}", flush=True)


def _measure(model: VisionTransformer, images: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the logits, and the mean over the heads of distance and entropy in each layer."""
    anatomy, attentions = examine(model, images), capture_attention(model, images)
    measures = {}
    for layer, attn in enumerate(attentions):
        if attn.shape[-2] == 1 or attn.min() < 0:
            continue
        distance = attention_distance(attn, anatomy.grid, model.patch_embed.patch_stride, anatomy.num_prefix_tokens)
        for name, values in (("distance", distance), ("entropy", attention_entropy(attn))):
            measures[f"attention_{name}/layer_{layer}"] = reduce(values, "b h -> ", "mean").item()
    return attentions.logits, measures
