"""Example images of a run, and the attention of its model on them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from vit.data.image_set import ImageSet
from vit.data.normalise import normalise
from vit.data.split import stratify
from vit.explain.default_method import DEFAULT_METHOD
from vit.explain.figures import draw_maps
from vit.explain.maps import Subject, signed_map
from vit.support.class_names import name_classes

SHOWN, ACROSS = 8, 4


def first_of_each_class(image_set: ImageSet, count: int) -> tuple[Tensor, Tensor]:
    """Return the first image of each class, then the second of each, up to ``count``: (n, C, H, W), (n, ...)."""
    labels = stratify(image_set.labels.cpu())
    by_class = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    place_in_class = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[by_class]]
    chosen = by_class[place_in_class.argsort(stable=True)][:count]
    return image_set.decode(chosen)


def check_whole(pl_module: LightningModule) -> None:
    """Check that one process can run the model alone.

    Raises:
        ValueError: If the model is sharded over processes.
    """
    if pl_module.device_mesh is not None:
        raise ValueError("the model is sharded, and no process can run it alone: use vit.load on its checkpoint")


@contextmanager
def evaluating(pl_module: LightningModule) -> Iterator[None]:
    """Run an objective in eval mode, without gradients and without autocast; each module gets its mode back."""
    modes = {module: module.training for module in pl_module.modules()}
    pl_module.eval()
    try:
        with torch.inference_mode(), torch.autocast(pl_module.device.type, enabled=False):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


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
        settings = {name: getattr(pl_module, name).flatten().tolist() for name in ("mean", "std")}
        yield model, normalise(pixels.to(pl_module.device), settings)


def draw_map(
    classifier: LightningModule, image_set: ImageSet, class_names: list[str] | None, title: str, path: Path
) -> None:
    """Draw which patches of a few images speak for the most probable class, with their predicted and true classes.

    Raises:
        ValueError: If the attention of the model cannot be captured.
    """
    pixels, labels = first_of_each_class(image_set, SHOWN)
    with model_copy(classifier, pixels) as (model, images):
        subject = Subject(model, images)
        maps = {DEFAULT_METHOD: signed_map(DEFAULT_METHOD, subject)}
        with torch.no_grad():
            logits = model(images)
    shown = captions_of(logits, labels, class_names)
    draw_maps(pixels, maps, path, **shown, title=title, across=ACROSS, cells=subject.cell_of_pixel)


def captions_of(logits: Tensor, labels: Tensor, class_names: list[str] | None) -> dict[str, Any]:
    """Return what ``draw_maps`` writes above images: the predicted and the true class, or several true labels."""
    if labels.ndim == 1:
        return {"logits": logits, "labels": labels, "class_names": class_names}
    names = name_classes(class_names, labels.shape[1])
    return {"names": [", ".join(name for name, there in zip(names, row, strict=True) if there) for row in labels]}
