"""The pictures of an evaluated reader: what it reads on pictures of a split, where it looks, and what it misreads.

Letters in the einops patterns: c image channels, h w rows and columns of pixels.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from lightning import LightningModule
from matplotlib.figure import Figure
from torch import Tensor

from vit.data.module import ImageSet
from vit.explain.text_figures import draw_text_maps
from vit.explain.texts import explain_text
from vit.support.plotting import GREEN, ORANGE, missing_letters, plain_text
from vit.training.examples import check_whole, model_copy

SHOWN, ACROSS = 16, 4
ATTENDED = 6  # pictures whose letters are shown with their attention
WIDTH, CAPTION, HEAD = 3.0, 0.34, 0.4  # inches: of a picture, of the text above it, of the title


def draw_texts(reader: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw pictures of a split with the text that a ``SequenceReader`` reads, and misread ones, into a folder."""
    check_whole(reader)
    images, tokens = image_set.decode(torch.arange(min(SHOWN, len(image_set.labels))))
    if lacking := missing_letters(reader.alphabet.letters):
        print(f"the font of the pictures lacks {lacking}, which are drawn as boxes", flush=True)
    title = f"Texts read on {split} pictures"
    evaluation = reader.evaluation
    if evaluation is not None:
        title += f": {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} without a mistake"
    draw_sheet(reader, images, tokens[:, 1:], title, folder / "reading.png")
    draw_attention(reader, images[:ATTENDED], f"Where it looks while it writes, {split} pictures", folder)
    if evaluation is not None and evaluation.misread:
        images, targets = (torch.stack(part) for part in zip(*evaluation.misread, strict=True))
        targets = targets.where(targets >= 0, reader.alphabet.end)
        draw_sheet(reader, images, targets, f"Misread {split} pictures", folder / "mistakes.png")


def draw_attention(reader: LightningModule, images: Tensor, title: str, folder: Path) -> None:
    """Draw the cross-attention of each letter that is read over its picture, into ``attention.png``."""
    tokens, texts = read_texts(reader, images)
    try:
        with model_copy(reader, images) as (model, normalised):
            maps = explain_text(model, normalised, tokens.to(normalised.device)).cpu()
        draw_text_maps(images, maps, texts, folder / "attention.png", title=title)
    except Exception as error:  # of any kind: a picture must not end a training
        print(f"no attention.png: {' '.join(str(error).split())}", flush=True)


def read_texts(reader: LightningModule, images: Tensor) -> tuple[Tensor, list[str]]:
    """Return what a reader writes on pictures: start and tokens (N, T), and the texts."""
    was_training = reader.training
    with torch.inference_mode(), torch.autocast(reader.device.type, enabled=False):
        written = reader.eval().read(images.to(reader.device)).tokens.cpu()
    reader.train(was_training)
    # Of the tokens written, all but the last are read.
    return F.pad(written, (1, -1), value=reader.alphabet.start).clone(), reader.alphabet.decode(written)


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
    _, read_on = read_texts(reader, images)
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
    texts = zip(read_on, reader.alphabet.decode(tokens), strict=True)
    for index, (image, (read, true)) in enumerate(zip(images, texts, strict=True)):
        left, top = WIDTH * (index % across), HEAD + CAPTION + (height + CAPTION) * (index // across)
        pixels = rearrange(image, "c h w -> h w c").numpy()
        axes.imshow(pixels, cmap="gray", extent=(left + 0.08, left + WIDTH - 0.08, top + height, top))
        caption = read if read == true else f"{read}  (true: {true})"
        color = GREEN if read == true else ORANGE
        axes.text(left + WIDTH / 2, top - 0.05, caption, ha="center", va="bottom", fontsize=11, color=color)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0), aspect="auto")
    figure.savefig(path, dpi=120)
