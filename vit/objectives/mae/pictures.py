"""The picture of an evaluated masked autoencoder: images, their visible patches, and what is predicted of the others.

Letters in the einops patterns: b images, n patches, p numbers of a patch, c image channels.
"""

from pathlib import Path

import torch
from einops import rearrange
from lightning import LightningModule
from torch import Tensor

from vit.data.module import ImageSet
from vit.model.masked_autoencoder import cut_into_patches, hidden_patches, join_patches, patch_statistics
from vit.objectives.neighbours import spread_out
from vit.support.captioned import draw_captioned
from vit.support.plotting import BLUE, GREY
from vit.training.example_images import check_whole, evaluating

SHOWN = 12
HIDDEN = 0.6  # brightness of hidden patches
NAMES = ("image", "visible", "predicted")


def draw_reconstructions(autoencoder: LightningModule, folder: Path, split: str, image_set: ImageSet) -> Path:
    """Draw images of a split with what a ``MaskedAutoencoder`` predicts of their hidden patches; return the file."""
    check_whole(autoencoder)
    images, _ = image_set.decode(spread_out(len(image_set.labels), SHOWN))
    with evaluating(autoencoder):
        sheet = torch.stack([images, *reconstructed(autoencoder, images.to(autoencoder.device))], dim=1)
    title = f"{split.capitalize()} images, whose hidden patches are predicted"
    if autoencoder.evaluation is not None:
        title += f" (error {autoencoder.evaluation.reconstruction_error:.3f})"
    shown = [*rearrange(sheet, "b version c h w -> (b version) c h w")]
    colors = [BLUE, GREY, GREY] * len(images)
    place = folder / "reconstructions.png"
    draw_captioned(shown, [*NAMES] * len(images), colors, title, place, across=2 * len(NAMES), width=1.3, fontsize=8)
    return place


def reconstructed(autoencoder: LightningModule, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return images with grey in place of hidden patches, and with predictions there: uint8, twice (B, C, H, W).

    A predicted patch is normalised. It gets the mean and the deviation of the true patch.
    """
    embedding = autoencoder.judged.patch_embed
    size, grid = embedding.patch_size, embedding.grid_size
    keep = autoencoder.visible_in_evaluation(len(images))
    normalised = autoencoder.normalise(images)
    patches = cut_into_patches(normalised, size)
    mean, deviation = patch_statistics(patches)
    predicted = autoencoder.network(normalised, keep).float() * deviation + mean
    hidden = rearrange(hidden_patches(keep, patches.shape[1]), "b n -> b n 1")
    whole = join_patches(torch.where(hidden, predicted, patches), size, grid) * autoencoder.std + autoencoder.mean
    grey = join_patches(torch.where(hidden, torch.full_like(patches, torch.nan), patches), size, grid)
    visible = (grey * autoencoder.std + autoencoder.mean).nan_to_num(HIDDEN)
    first, second = ((255 * version).round().clamp(0, 255).to(torch.uint8).cpu() for version in (visible, whole))
    return first, second
