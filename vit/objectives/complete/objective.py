"""The LightningModule that trains and evaluates a model of images as rows of coloured pixels.

Letters in the einops patterns: b images, c channels, r s rows and columns of pixels, v colours.
"""

import math
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.data.image_set import ImageSet
from vit.data.module import ImageDataModule
from vit.model.decoder import DecoderPositions
from vit.model.embedding import to_pair
from vit.model.image_gpt import ImageGPT
from vit.model.masked_image import MaskedImageModel
from vit.model.middle_model import MiddleModel
from vit.model.pixel_model import PixelModel
from vit.objectives.complete.evaluation import CompletionEvaluation, PixelStatistics, count_pixels
from vit.objectives.complete.palette import learn_palette, quantise, resize_images
from vit.objectives.complete.pictures import draw_completions
from vit.support.checks import check_choice, check_positive_int, check_size
from vit.training.description import Picture, Score, Table
from vit.training.evaluated_images import is_of_data
from vit.training.flop import forward_flop
from vit.training.objective import Objective
from vit.training.optimizer import Optimizer
from vit.training.schedule import Decay

Prediction = Literal["causal", "masked", "middle"]
MODELS: dict[str, type[PixelModel]] = {"causal": ImageGPT, "masked": MaskedImageModel, "middle": MiddleModel}
MOST_IMAGES = 20_000  # from which palette and baselines are learned
PART = 256  # images that are decoded and counted at once


class ImageCompleter(Objective):
    """Predicts pixels from other pixels: colours of a palette that is learned from the training images.

    Args:
        image_size: Rows and columns of the images of the data.
        in_channels: Channels of an image: 3 for colour, 1 for grey.
        grid_size: Rows and columns of pixels that images are scaled down to, or one number for both; None keeps their
            size. The work grows with the square of the number of pixels.
        patch_size: Rows and columns of pixels that are one token; 1 takes each pixel by itself.
        palette_size: Number of different tokens, which k-means chooses: colours, or patches.
        objective: What is predicted: each pixel from the pixels before it, row by row ("causal", as in Image GPT),
            hidden pixels from all visible ones ("masked", as in BERT), or each pixel of the middle rows from the rows
            above and below and the middle pixels before it ("middle").
        embed_dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Attention heads of a block; must divide ``embed_dim``.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        positions: Positions of the pixels: "learned", fixed sine-cosine codes ("sincos"), or rotary angles of queries
            and keys ("rope").
        dropout: Probability of zeroing a channel after the embedding and after each projection, in [0, 1).
        kwargs: Training.

    Raises:
        ValueError: If an argument is out of its range.
    """

    monitor = Score("bits_per_pixel", "Bits per pixel", "lower", unit="")
    columns = (Score("accuracy", "Accuracy", note="of the pixels, or of the patches if they are larger"),)
    pictures = (
        Picture(
            "completions",
            "Completions",
            "Images, the rows that are given, and those that were drawn",
            has_photographs=True,
        ),
    )
    encoder = None
    prediction_columns = ("bits_per_pixel",)

    def __init__(
        self,
        image_size: int | tuple[int, int] = 32,
        in_channels: int = 3,
        grid_size: int | tuple[int, int] | None = None,
        patch_size: int = 1,
        palette_size: int = 16,
        objective: Prediction = "causal",
        embed_dim: int = 96,
        depth: int = 4,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        positions: DecoderPositions = "learned",
        dropout: float = 0.0,
        lr: float = 3e-3,
        optimizer: Optimizer = "muon",
        decay: Decay = "linear",
        **kwargs: Any,
    ) -> None:
        super().__init__(lr=lr, optimizer=optimizer, decay=decay, **kwargs)
        check_positive_int("palette_size", palette_size, "16 is usual")
        if palette_size == 1:
            raise ValueError("palette_size (1) leaves nothing to predict, as all pixels are equal: 16 is usual")
        check_positive_int("patch_size", patch_size, "1 takes each pixel by itself")
        check_choice("objective", objective, get_args(Prediction))
        if grid_size is not None:
            check_size("grid_size", grid_size)
        size = image_size if grid_size is None else grid_size
        self.size = to_pair(size)
        if any(side % patch_size for side in self.size):
            raise ValueError(f"patch_size ({patch_size}) must divide grid_size {self.size}: take another one")
        self.grid = (self.size[0] // patch_size, self.size[1] // patch_size)
        further = {"mlp_ratio": mlp_ratio, "positions": positions, "dropout": dropout}
        self.network = MODELS[objective](palette_size, self.grid, embed_dim, depth, num_heads, **further)
        # Buffers, so that a checkpoint has them: the training images are not needed again.
        self.register_buffer("palette", torch.zeros(palette_size, in_channels * patch_size**2))
        self.register_buffer("pixel_counts", torch.zeros(1 + palette_size, palette_size, dtype=torch.long))
        self.has_palette = False  # of trained weights: they mean the colours of that palette

    def setup(self, stage: str) -> None:
        """Learn the palette and the baselines from training images, before a training from the start."""
        if stage != "fit" or self.has_palette:
            return
        data = self.trainer.datamodule
        if not isinstance(data, ImageDataModule):
            raise ValueError(
                "ImageCompleter learns its palette from all training images before the training, and gets them from "
                f"data modules of vit.data, not from a {type(data).__name__}: derive yours from ImageDataModule"
            )
        if data.balance == "loss":
            raise ValueError("balance 'loss' weights classes, and ImageCompleter has none: take 'sampling' or 'none'")
        for name in ("mixup", "cutmix"):
            if alpha := data.augmentation[name]:
                raise ValueError(f"{name} ({alpha}) blends images, whose colours ImageCompleter learns: set it to 0")
        train = data.sets["train"]
        chosen = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(0))[:MOST_IMAGES]
        images = torch.cat([resize_images(train.decode(part)[0], self.size) for part in chosen.split(PART)])
        palette = learn_palette(images, len(self.palette), self.hparams.patch_size)
        self.palette.copy_(palette)
        counts = [count_pixels(quantise(part, palette), len(palette)) for part in images.split(PART)]
        self.pixel_counts.copy_(torch.stack(counts).sum(dim=0))
        self.has_palette = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint fits, and keep its palette in a further training."""
        super().on_load_checkpoint(checkpoint)
        self.has_palette = True

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint has the architecture of this model.

        Raises:
            ValueError: If tensors differ, or an argument that changes none: the heads, the order of the pixels.
        """
        super().check_fits(checkpoint)
        theirs, ours = checkpoint["hyper_parameters"], self.hparams
        for name in ("num_heads", "objective", "positions"):
            if name in theirs and theirs[name] != ours[name]:
                raise ValueError(
                    f"the checkpoint was trained with {name} {theirs[name]!r}, and this model has {ours[name]!r}: "
                    f"leave --model.{name} as it was"
                )

    def pixels(self, images: Tensor) -> Tensor:
        """Return the number of each token in the palette: uint8 or float in [0, 1], (B, C, H, W) -> (B, r, s)."""
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 has 8 bits for 256 levels
            return quantise(resize_images(images, self.size), self.palette.float())

    def predict(self, pixels: Tensor, counted: Tensor) -> Tensor:
        """Compute the logits of each pixel, to predict those that are counted: (B, r, s) twice -> (B, r, s, V)."""
        return self.network(*self.network.forward_inputs(pixels, counted))

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy of the predicted pixels: for "masked" a random share of each image."""
        pixels = self.pixels(batch[0])
        counted = self.network.scored_in_training(pixels)
        logits = rearrange(self.predict(pixels, counted).float(), "b r s v -> b v r s")
        return self.mean_of_counted(F.cross_entropy(logits, pixels, reduction="none"), counted)

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        pixels = torch.zeros(1, *self.grid, dtype=torch.long, device=self.device)
        return 3 * forward_flop(self.network, *self.network.forward_inputs(pixels, pixels.bool()))

    def new_evaluation(self) -> CompletionEvaluation:
        """Return the sums of an evaluation over no images."""
        return CompletionEvaluation(PixelStatistics(self.pixel_counts), self.hparams.patch_size**2, self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add a batch to the evaluation."""
        images, _ = batch
        pixels = self.pixels(images)
        counted = self.network.scored_pixels(pixels)
        is_real = is_of_data(self.place(batch_idx), images)
        pixels, counted = pixels[is_real], counted[is_real]
        self.evaluation.update(self.predict(pixels, counted), pixels, counted, self.network.unseen_pixels(counted))

    test_step = validation_step

    @classmethod
    def result_lines(cls, results: dict[str, Any]) -> list[str]:
        """Return the line of the baselines."""
        baselines = (results.get("scores") or {}).get("baselines", {})
        named = ", ".join(f"{name} {bits:.3f}" for name, bits in baselines.items())
        return [f"bits per pixel of baselines: {named}"] if named else []

    @classmethod
    def tables(cls, scores: dict[str, Any], split: str | None) -> list[Table]:
        """Return the bits per pixel of the model and of its baselines, fewest first."""
        if "baselines" not in scores:
            return []
        bits = {"this model": scores["bits_per_pixel"]} | scores["baselines"]
        rows = [(name, f"{value:.3f}") for name, value in sorted(bits.items(), key=lambda row: row[1])]
        return [Table(f"Bits per pixel, {split} images", ("fewest first", "bits per pixel"), rows)]

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw images of the split whose lower half, or middle, is completed, into a folder."""
        draw_completions(self, folder, split, image_set)

    def complete(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the lower half of images, or their middle, anew: (B, C, H, W) -> numbers of colours (B, r, s).

        Raises:
            ValueError: If the completer is in training mode.
        """
        if self.training:
            raise ValueError(
                "the completer is in training mode, in which dropout is random: call completer.eval() first"
            )
        return self.network.redraw(self.pixels(images), generator)

    def predict_step(self, batch: tuple[Tensor, list[str], list[str]], batch_idx: int) -> Tensor:
        """Return the bits per pixel of the readable images of a batch, (B,): fewer for images like the training's."""
        images, files, _ = batch
        if not files:
            return torch.empty(0)
        pixels = self.pixels(images)
        counted = self.network.scored_pixels(pixels)
        logits = rearrange(self.predict(pixels, counted).float(), "b r s v -> b v r s")
        losses = F.cross_entropy(logits, pixels, reduction="none") * counted
        nats = losses.sum(dim=(1, 2)) / counted.sum(dim=(1, 2))
        return nats / math.log(2) / self.hparams.patch_size**2

    def prediction_rows(self, outputs: Tensor) -> list[dict[str, str]]:
        """Return the bits per pixel of each image."""
        return [{"bits_per_pixel": f"{bits:.4f}"} for bits in outputs.tolist()]
