"""Masked autoencoding: the LightningModule that trains an encoder to predict hidden patches from visible ones."""

from pathlib import Path
from typing import Any

import torch
from einops import reduce, repeat
from torch import Tensor

from vit.data.module import ImageSet
from vit.data.seeding import seeded
from vit.model.masked_autoencoder import PatchAutoencoder, reconstruction_losses
from vit.model.patch_drop import PatchDrop
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.feature_learner import FeatureLearner
from vit.objectives.mae.evaluation import ReconstructionEvaluation
from vit.objectives.mae.pictures import draw_reconstructions
from vit.support.checks import check_share
from vit.training.description import Picture, Score
from vit.training.flop import forward_flop


class MaskedAutoencoder(FeatureLearner):
    """Learns features without labels: a decoder predicts hidden patches from the encoded visible patches.

    The encoder sees few patches, so a step is several times as cheap as a step of a classifier (He et al. 2022).

    Args:
        mask_ratio: Share of the patches that are hidden in each image, in (0, 1).
        decoder_dim: Channels of a token of the decoder.
        decoder_depth: Number of blocks of the decoder, which is left out after the training.
        decoder_heads: Attention heads of a block of the decoder; must divide ``decoder_dim``.
        kwargs: Training, and the VisionTransformer that computes the features.

    Raises:
        ValueError: If an argument is out of its range.
    """

    monitor = Score(
        "reconstruction_error",
        "Error of reconstruction",
        "lower",
        unit="",
        note="of hidden patches, each normalised: a prediction of their means has about 1",
    )
    pictures = (
        Picture(
            "reconstructions",
            "Reconstructions",
            "Images, their visible patches, and what is predicted of the others",
            has_photographs=True,
        ),
        *FeatureLearner.pictures,
    )

    def __init__(
        self,
        mask_ratio: float = 0.75,
        decoder_dim: int = 64,
        decoder_depth: int = 2,
        decoder_heads: int = 4,
        **kwargs: Any,
    ) -> None:
        check_share("mask_ratio", mask_ratio, "0.75 is usual")
        if kwargs.get("pool") == "map":
            raise ValueError("pool ('map') has weights that a masked autoencoder does not train: take 'cls' or 'mean'")
        if rate := kwargs.get("patch_drop"):
            raise ValueError(f"patch_drop ({rate}) does nothing in a masked autoencoder: set mask_ratio in its place")
        # With fc_norm, which pool "mean" would set, the tokens would have no norm.
        super().__init__(fc_norm=False, **kwargs)
        self.hparams.pop("fc_norm", None)

    def build_network(self, encoder: VisionTransformer) -> PatchAutoencoder:
        """Return the encoder with its decoder."""
        hp, patches = self.hparams, encoder.patch_embed.num_patches
        self.masking = PatchDrop(hp.mask_ratio)
        hidden = patches - self.masking.draw(1, patches).shape[1]
        if hidden == 0:
            raise ValueError(
                f"mask_ratio ({hp.mask_ratio}) hides none of the {patches} patches of an image, so that nothing is "
                "left to predict: 0.75 is usual, and smaller patches are more"
            )
        for number, block in enumerate(encoder.blocks):
            if "grid" in block.attn.mechanism.takes:
                raise ValueError(
                    f"attention of block {number} needs the whole grid of patches, of which mask_ratio "
                    f"({hp.mask_ratio}) hides a part: take softmax attention"
                )
        return PatchAutoencoder(encoder, hp.decoder_dim, hp.decoder_depth, hp.decoder_heads)

    def sample_visible(self, count: int) -> Tensor:
        """Draw the numbers of the visible patches of each image: (count, K)."""
        return self.masking.draw(count, self.judged.patch_embed.num_patches, self.device)

    def visible_in_evaluation(self, count: int) -> Tensor:
        """Return the numbers of the visible patches of an evaluation, the same in each image: (count, K)."""
        with seeded(0):
            keep = self.masking.draw(1, self.judged.patch_embed.num_patches)
        return repeat(keep.to(self.device), "1 k -> b k", b=count)

    def _losses(self, images: Tensor, keep: Tensor) -> Tensor:
        targets, size = self.normalise(images), self.judged.patch_embed.patch_size
        return reconstruction_losses(self.network(targets, keep).float(), targets, keep, size)

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean squared error of hidden patches, which are drawn for each image."""
        images = batch[0]
        return reduce(self._losses(images, self.sample_visible(len(images))), "b -> ", "mean")

    def losses(self, images: Tensor, is_real: Tensor, batch_idx: int) -> Tensor:
        """Return the mean squared error of the hidden patches of each image, the same patches in each: -> (B,)."""
        return self._losses(images, self.visible_in_evaluation(len(images)))

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        embedding = self.judged.patch_embed
        shape = (1, embedding.in_channels, *embedding.image_size)
        images = torch.zeros(shape, device=self.device, dtype=embedding.proj.weight.dtype)
        return 3 * forward_flop(self.network, images, self.visible_in_evaluation(1))

    def new_evaluation(self) -> ReconstructionEvaluation:
        """Return an evaluation of no images."""
        return ReconstructionEvaluation(self.judged.num_features, self.device)

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw reconstructions of images of the split, and neighbours, into a folder."""
        draw_reconstructions(self, folder, split, image_set)
        super().draw(folder, split, image_set)

    def draw_validation(self, folder: Path, split: str, image_set: ImageSet) -> list[Path]:
        """Draw reconstructions of images of the split, and return the file; none of a model sharded over processes."""
        return [draw_reconstructions(self, folder, split, image_set)] if self.device_mesh is None else []
