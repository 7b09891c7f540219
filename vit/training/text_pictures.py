"""The pictures of an evaluated reader: what it reads on pictures of a split, and what it misreads.

Letters in the einops patterns: c image channels, h w rows and columns of pixels.
"""

from pathlib import Path

import torch
from einops import rearrange
from lightning import LightningModule
from matplotlib.figure import Figure
from torch import Tensor

from vit.data.module import ImageSet
from vit.plotting import GREEN, ORANGE, plain_text
from vit.training.examples import decoded

SHOWN, ACROSS = 16, 4
WIDTH, CAPTION, HEAD = 3.0, 0.34, 0.4  # inches: of a picture, of the text above it, of the title


def draw_texts(reader: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw pictures of a split with the text that a ``SequenceReader`` reads, and misread ones, into a folder."""
    images, tokens = decoded(image_set, torch.arange(min(SHOWN, len(image_set.labels))))
    title = f"Texts read on {split} pictures"
    evaluation = reader.evaluation
    if evaluation is not None:
        title += f": {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} without a mistake"
    draw_sheet(reader, images, tokens[:, 1:], title, folder / "reading.png")
    if evaluation is not None and evaluation.misread:
        images, targets = (torch.stack(part) for part in zip(*evaluation.misread, strict=True))
        targets = targets.where(targets >= 0, reader.alphabet.end)
        draw_sheet(reader, images, targets, f"Misread {split} pictures", folder / "mistakes.png")


@plain_text
def draw_sheet(reader: LightningModule, images: Tensor, tokens: Tensor, title: str, path: Path) -> None:
    """Draw pictures with the text that is read above each, in orange beside the true one where it is wrong.

    Args:
        reader: A ``SequenceReader``.
        images: The pictures, uint8 (N, C, H, W).
        tokens: Their texts without the start, (N, T).
        title: Title of the sheet.
        path: File of the picture.
    """
    was_training = reader.training
    with torch.inference_mode(), torch.autocast(reader.device.type, enabled=False):
        written = reader.eval().read(images.to(reader.device)).tokens.cpu()
    reader.train(was_training)
    rows, columns = images.shape[-2:]
    across = min(ACROSS, len(images))
    height = WIDTH * rows / columns
    down = -(-len(images) // across)
    size = across * WIDTH, HEAD + down * (height + CAPTION)
    figure = Figure(figsize=size)
    # One Axes for all pictures: the layout of one for each takes seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.text(size[0] / 2, HEAD / 2, title, ha="center", va="center", fontsize=12)
    texts = zip(reader.alphabet.decode(written), reader.alphabet.decode(tokens), strict=True)
    for index, (image, (read, true)) in enumerate(zip(images, texts, strict=True)):
        left, top = WIDTH * (index % across), HEAD + CAPTION + (height + CAPTION) * (index // across)
        pixels = rearrange(image, "c h w -> h w c").numpy()
        axes.imshow(pixels, cmap="gray", extent=(left + 0.08, left + WIDTH - 0.08, top + height, top))
        caption = read if read == true else f"{read}  (true: {true})"
        color = GREEN if read == true else ORANGE
        axes.text(left + WIDTH / 2, top - 0.05, caption, ha="center", va="bottom", fontsize=11, color=color)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0), aspect="auto")
    figure.savefig(path, dpi=120)
