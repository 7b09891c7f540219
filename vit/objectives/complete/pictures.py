"""The picture of an evaluated completer: images whose lower half, or middle, it has drawn.

Letters in the einops patterns: n images, m versions of an image, c channels, h w rows and columns of pixels.
"""

from pathlib import Path

import torch
from einops import rearrange, repeat
from lightning import LightningModule
from matplotlib.figure import Figure

from vit.data.image_set import ImageSet
from vit.objectives.complete.palette import dequantise
from vit.support.picture_files import save_photographs
from vit.support.plotting import plot_style
from vit.training.example_images import check_whole, evaluating

SHOWN, DRAWN = 6, 3  # images, completions of each
GREY = 0.6  # brightness of the hidden rows


def draw_completions(completer: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw images of a split, the rows that are given, and completions by an ``ImageCompleter``, into a folder."""
    check_whole(completer)
    images, _ = image_set.decode(torch.arange(min(SHOWN, len(image_set.labels))))
    generator = torch.Generator(completer.device).manual_seed(0)
    with evaluating(completer):
        images = images.to(completer.device)
        pixels = completer.pixels(images)
        drawn = [completer.complete(images, generator) for _ in range(DRAWN)]
    whole, *completions = (
        dequantise(version, completer.palette, images.shape[1]).cpu() / 255 for version in (pixels, *drawn)
    )
    given, side, rows = whole.clone(), completer.hparams.patch_size, completer.network.completed_rows
    given[:, :, rows.start * side : rows.stop * side] = GREY
    part = "Lower halves" if rows.stop == completer.grid[0] else "Middle rows"
    title = f"{part} of {split} images,\ndrawn by the model"
    evaluation = completer.evaluation
    if evaluation is not None:
        title += f" ({evaluation.scores()['bits_per_pixel']:.2f} bits per pixel)"
    draw_sheet([whole, given, *completions], ["image", "given", *["drawn"] * DRAWN], title, folder / "completions.png")


@plot_style
def draw_sheet(versions: list[torch.Tensor], names: list[str], title: str, path: Path) -> None:
    """Draw versions of images (N, C, H, W), in [0, 1], side by side, an image in a row."""
    stacked = repeat(torch.stack(versions), "m n c h w -> n m (k c) h w", k=3 if versions[0].shape[1] == 1 else 1)
    framed = torch.nn.functional.pad(stacked, (1, 1, 1, 1), value=1.0)
    sheet = rearrange(framed, "n m c h w -> (n h) (m w) c")
    height, width = sheet.shape[:2]
    figure = Figure(figsize=(6, 6 * height / width + 1), layout="constrained")
    axes = figure.subplots()
    axes.imshow(sheet.numpy(), extent=(0, len(names), len(framed), 0), aspect="auto")
    axes.set_xticks([place + 0.5 for place in range(len(names))], names, fontsize=13)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, fontsize=14)
    save_photographs(figure, path)
