"""The labelled images of the command ``python -m vit.analysis``."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import vit.data
from vit.data.labelled_files import LabelledFiles
from vit.data.module import ImageDataModule, ImageSet
from vit.data.normalise import normalise
from vit.data.shards import check_no_command
from vit.model.vision_transformer import VisionTransformer
from vit.support.arguments import constructor_arguments
from vit.support.class_names import name_classes
from vit.support.printable import list_names

# A checkpoint notes all arguments of its data set. These set its splits and pixels; all others change how it trains.
SPLITTING = (
    "table",
    "urls",
    "val_urls",
    "test_urls",
    "root",
    "class_names",
    "val_fraction",
    "test_fraction",
    "folds",
    "fold",
    "crop_ratio",
    "skip_damaged",
    "duplicates",
    "max_pixels",
    "memory_limit",
    "num_workers",
    "corrupt",
    "corrupted",
)


class Labelled(NamedTuple):
    """Images (B, C, H, W), normalised for a model, and their classes (B,)."""

    images: Tensor
    labels: Tensor


def labelled_images(
    model: VisionTransformer, noted: dict[str, Any], root: str | None, count: int
) -> tuple[str, Labelled, Labelled, int]:
    """Return the name of the data, up to ``count`` training images, as many test images, and a checksum of their split.

    If ``is_split_of_training``, the splits are those of the training, and the model was not trained on any test image.
    If there are no test images, the validation images take their place, and the name says so. The images are drawn at
    random, but every call draws the same images.

    Args:
        model: The model, as ``vit.load`` returns it.
        noted: What the checkpoint notes of its data: "class_path" and "init_args". Empty if it notes nothing.
        root: Folder with one folder per class, to use in place of the noted data. None means the noted data.
        count: Largest number of images to draw from each split. Only the drawn files are decoded.

    Raises:
        ValueError: If there are no such data, their classes differ from those of the model, or a drawn file is damaged.
    """
    data = _data_module(model, noted, root)
    if isinstance(data, LabelledFiles):
        data.in_channels, data.image_size = model.patch_embed.in_channels, model.patch_embed.image_size
        data.stretch = model.pretrained_cfg.get("stretch", False)
        data.decodes_on_demand = not data.corrupt  # corrupted images are made when all are loaded
    name = " ".join([type(data).__name__, str(getattr(data, "root", ""))]).strip()
    names = name_classes(model.pretrained_cfg["class_names"], model.num_classes)
    if model.pretrained_cfg["class_names"] is not None and list(data.class_names) != names:
        raise ValueError(
            f"the classes of {name} ({list_names(data.class_names, 3)}) are not those of the model "
            f"({list_names(names, 3)}): give the data that it was trained on by --data.root"
        )
    if len(data.class_names) != model.num_classes:
        raise ValueError(
            f"{name} has {len(data.class_names)} classes ({list_names(data.class_names, 3)}), and the model "
            f"{model.num_classes} without names: give a folder of as many class folders, whose names sort as its logits"
        )
    data.prepare_data()
    data.setup("test")
    if data.sets["train"].labels.ndim > 1:
        raise ValueError(
            f"{name} has several labels or a text for an image: name images of one class each by --data.root DIR"
        )
    if not {"test", "val"} & data.sets.keys():
        raise ValueError(f"{name} has neither test nor validation images: the model was trained on all its images")
    if "test" not in data.sets:
        name += ", validation images"
    split = "test" if "test" in data.sets else "val"
    if data.sets[split].groups is not None:
        name += ", one image of each group"
    drawn = (_drawn(data.sets[part], model, count) for part in ("train", split))
    return name, *drawn, data.fingerprints[split]


def is_split_of_training(noted: dict[str, Any], root: str | None) -> bool:
    """Return whether images are split as in the training: if ``root`` is None, or the folder that was trained on.

    A folder does not have the split of a table or of shards, and a copy elsewhere may be of other images.
    """
    theirs = noted.get("init_args", {}).get("root")
    is_folder = noted.get("class_path", "").rpartition(".")[2] == "ImageFolder"
    return root is None or (is_folder and bool(theirs) and Path(theirs).resolve() == Path(root).resolve())


def _data_module(model: VisionTransformer, noted: dict[str, Any], root: str | None) -> ImageDataModule:
    kind = noted.get("class_path", "").removeprefix("vit.data.")
    # Only look the name up in vit.data: a class path in an untrusted file must not import anything.
    known = vit.data.DATA_SETS.get(kind)
    if root is not None and known is not vit.data.ImageFolder:
        return vit.data.ImageFolder(root, crop_ratio=model.pretrained_cfg["crop_ratio"])
    if known is None:
        raise ValueError("the model does not say what data it was trained on: name its folder by --data.root DIR")
    names = constructor_arguments(known) & {*SPLITTING}
    arguments = {name: value for name, value in noted.get("init_args", {}).items() if name in names}
    check_no_command(arguments, "the checkpoint")
    return known(**arguments | ({"root": root, "class_names": None} if root else {}))


def _drawn(of: ImageSet, model: VisionTransformer, count: int) -> Labelled:
    """Draw images, decode them if they are files, and normalise them.

    Of each group, such as a patient, one image is drawn: intervals and halves take images for independent.
    """
    order = torch.randperm(len(of.labels), generator=torch.Generator().manual_seed(0))
    if of.groups is not None:
        first = {group: place for place, group in reversed([*enumerate(of.groups[order].tolist())])}
        order = order[sorted(first.values())]
    pixels, labels = of.decode(order[:count])
    return Labelled(normalise(pixels, model.pretrained_cfg), labels)
