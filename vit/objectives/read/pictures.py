"""The pictures of an evaluated reader: what it reads on pictures of a split, where it looks, and what it misreads."""

from pathlib import Path

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor

from vit.data.image_set import ImageSet
from vit.explain.text_figures import draw_text_maps
from vit.explain.texts import cells_of_text, explain_text
from vit.support.captioned import draw_captioned
from vit.support.fonts import missing_letters
from vit.support.plotting import GREEN, ORANGE
from vit.training.example_images import check_whole, evaluating, model_copy

SHOWN, ACROSS = 16, 4
ATTENDED = 6  # pictures whose letters are shown with their attention


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
            cells = cells_of_text(model, normalised)
        draw_text_maps(images, maps, texts, folder / "attention.png", title=title, cells=cells)
    except Exception as error:  # of any kind: a picture must not end a training
        print(f"no attention.png: {' '.join(str(error).split())}", flush=True)


def read_texts(reader: LightningModule, images: Tensor) -> tuple[Tensor, list[str]]:
    """Return what a reader writes on pictures: start and tokens (N, T), and the texts."""
    with evaluating(reader):
        written = reader.read(images.to(reader.device)).tokens.cpu()
    # The decoder reads all tokens that it writes but the last.
    return F.pad(written, (1, -1), value=reader.alphabet.start).clone(), reader.alphabet.decode(written)


def draw_sheet(reader: LightningModule, images: Tensor, tokens: Tensor, title: str, path: Path) -> None:
    """Draw pictures with the text that is read above each, in orange beside the true one if it is wrong.

    The pictures are uint8 (N, C, H, W), and the tokens their texts without the start, (N, T).
    """
    _, read_on = read_texts(reader, images)
    texts = list(zip(read_on, reader.alphabet.decode(tokens), strict=True))
    captions = [read if read == true else f"{read}  (true: {true})" for read, true in texts]
    colors = [GREEN if read == true else ORANGE for read, true in texts]
    draw_captioned(list(images), captions, colors, title, path, across=min(ACROSS, len(images)), width=3.0, fontsize=11)
