"""Example images of a run, and the attention of its model on them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning import LightningModule
from torch import Tensor, nn

from vit.data.image_files import collate_readable
from vit.data.module import ImageSet
from vit.data.split import number_strata
from vit.explain import explain
from vit.explain.figures import draw_maps
from vit.support.class_names import name_classes

SHOWN, ACROSS = 8, 4


def first_of_each_class(image_set: ImageSet, count: int) -> tuple[Tensor, Tensor]:
    """Return the first image of each class, then the second of each, up to ``count``: (n, C, H, W), (n,)."""
    labels = number_strata(image_set.labels.cpu())
    by_class = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    place_in_class = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]
    chosen = by_class[place_in_class.argsort(stable=True)][:count]
    return decoded(image_set, chosen)


def decoded(image_set: ImageSet, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images at the indices ``chosen``, and their labels: (n, C, H, W), (n, ...)."""
    few = image_set.subset(chosen)
    if isinstance(few.images, Tensor):
        return few.images, few.labels
    batch = collate_readable([few.images[index] for index in range(len(chosen))])
    batch.raise_unreadable()
    return batch.images, batch.labels


def check_whole(pl_module: LightningModule) -> None:
    """Check that one process can run the model alone.

    Raises:
        ValueError: If the model is sharded over processes.
    """
    if pl_module.device_mesh is not None:
        raise ValueError("the model is sharded, and no process can run it alone: use vit.load on its checkpoint")


@contextmanager
def model_copy(pl_module: LightningModule, pixels: Tensor) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield a copy of the model for analysis, and the normalised images (n, C, H, W).

    The copy is in eval mode, in float32 and not compiled; the training is not affected.

    Raises:
        ValueError: If the model is sharded over processes.
    """
    check_whole(pl_module)
    with torch.inference_mode(False), torch.autocast(pl_module.device.type, enabled=False):
        model = copy.deepcopy(pl_module.network).float().eval()
        mean, std = pl_module.mean.float(), pl_module.std.float()
        yield model, (pixels.to(mean.device) / 255 - mean) / std


def draw_rollout(
    classifier: LightningModule, image_set: ImageSet, class_names: list[str] | None, title: str, path: Path
) -> None:
    """Draw the attention rollout on a few images, with their predicted and true classes.

    Raises:
        ValueError: If the attention of the model cannot be captured.
    """
    pixels, labels = first_of_each_class(image_set, SHOWN)
    with model_copy(classifier, pixels) as (model, images):
        maps = {"rollout": explain(model, images)}
        with torch.no_grad():
            logits = model(images)
    shown = {"logits": logits, "labels": labels, "class_names": class_names}
    if labels.ndim > 1:  # several labels have no predicted class beside a true one
        names = name_classes(class_names, labels.shape[1])
        shown = {"names": [", ".join(name for name, there in zip(names, row, strict=True) if there) for row in labels]}
    draw_maps(pixels, maps, path, **shown, title=title, across=ACROSS)
