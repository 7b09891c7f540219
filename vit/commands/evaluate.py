"""The command ``vit-attention evaluate``: frozen features, evaluated by a simple classifier."""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vit.commands.models import add_checkpoint, find_model, is_training_checkpoint, tell_assumed
from vit.commands.parser import Parser, add_max_pixels, add_skip_damaged, run
from vit.features import CLASSIFIERS, extract
from vit.support.checks import check_positive_int
from vit.support.printable import printable
from vit.support.progress import progress
from vit.weights import load
from vit.weights.checkpoint import describe_checkpoint

if TYPE_CHECKING:
    from vit.data.folder import ImageFolder
    from vit.data.module import ImageSet

BATCH = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention evaluate``: evaluate the frozen features of a model on images in class folders."""
    parser = Parser(
        prog="vit-attention evaluate",
        description="Evaluate the frozen features of a model: a simple classifier is fitted to those of the training "
        "images, and asked about the test images.",
        epilog="Example: vit-attention evaluate knn --checkpoint cifar10 --data.root photos",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("classifier", choices=[*CLASSIFIERS], help="nearest neighbours, or logistic regression")
    add_checkpoint(parser)
    add(
        "--data.root", dest="root", required=True, metavar="DIR", help="folder of class folders, or of train/ and test/"
    )
    add_skip_damaged(parser)
    add("--images", type=int, metavar="N", help="most images of each split (default: all)")
    add_max_pixels(parser)
    run(parser, arguments, _evaluate)


def _evaluate(options: argparse.Namespace) -> None:
    from vit.data import ImageFolder  # imports torchvision, which --help does not need

    start = time.perf_counter()
    if options.images is not None:
        check_positive_int("--images", options.images)
    if not Path(options.root).is_dir():
        raise ValueError(f"no folder {options.root}: name a folder of class folders by --data.root")
    options.checkpoint = find_model(options.checkpoint)
    model = load(options.checkpoint)
    tell_assumed(model)
    path = Path(options.checkpoint)
    noted = describe_checkpoint(path) if is_training_checkpoint(path) else {}
    crop, embed, typed = model.pretrained_cfg["crop_ratio"], model.patch_embed, options.max_pixels
    data = ImageFolder(
        options.root,
        image_size=embed.image_size,
        crop_ratio=crop,
        skip_damaged=options.skip_damaged == "true",
        **{"val_fraction": 0.0}
        | _split(noted.get("data", {}), options.root)
        | ({} if typed is None else {"max_pixels": typed}),
    )
    if data.without_classes is not None:
        raise ValueError(data.without_classes)
    data.in_channels, data.stretch = embed.in_channels, model.pretrained_cfg.get("stretch", False)
    data.prepare_data()
    data.setup("test")
    if "test" not in data.sets:
        remedy = "the training of the model held out none: name another folder by --data.root"
        if "val" in data.splits:
            remedy = "rename its folder val to test, or name a folder without splits, of which a part is held out"
        raise ValueError(f"{options.root} has no test images: {remedy}")
    _warn_of_seen_images(options.checkpoint, noted, data)
    splits = {split: _drawn(data.sets[split], options.images) for split in ("train", "test")}
    (known, labels), (asked, answers) = (
        (extract(model, _batches(part, split)), part.labels) for split, part in splits.items()
    )
    accuracy = CLASSIFIERS[options.classifier](known, labels, asked, answers)
    print(
        f"{options.classifier}: {100 * accuracy:.2f} % of {len(answers):,} test images, from {len(labels):,} training "
        f"images of {len(data.class_names)} classes, in {time.perf_counter() - start:.0f} s"
    )


def _split(noted: dict[str, Any], root: str) -> dict[str, Any]:
    """Return the options that chose the test images of the training, as far as they hold for the images of ``root``.

    Args:
        noted: What the checkpoint notes of its data: "class_path" and "init_args". Empty if it notes nothing.
        root: The folder that is evaluated.
    """
    from vit.analysis.labelled import is_split_of_training

    arguments = noted.get("init_args", {})
    known = ["test_fraction", "duplicates", "max_pixels"]
    if not arguments.get("test_fraction"):  # no test images were held out of the training
        known.remove("test_fraction")
    if is_split_of_training(noted, root):
        # The split also depends on the order of the classes, and on whether images are left for validation.
        known += ["test_fraction", "val_fraction", "class_names", "folds", "fold"]
    return {name: value for name, value in arguments.items() if name in known}


def _warn_of_seen_images(checkpoint: str, noted: dict[str, Any], data: "ImageFolder") -> None:
    """Print a note if the model may have been trained on test images.

    Args:
        checkpoint: The name of the model.
        noted: The contents of the training checkpoint; empty for other weights.
        data: The images that are evaluated.
    """
    import vit.data
    from vit.analysis.labelled import is_split_of_training
    from vit.data.labelled_files import LabelledFiles
    from vit.data.module import SPLIT
    from vit.support.first_process import print_once

    of_data, split = noted.get("data", {}), noted.get(SPLIT)
    kind, arguments = of_data.get("class_path", "").rpartition(".")[2], of_data.get("init_args", {})
    cls = vit.data.DATA_SETS.get(kind)
    if not of_data or (cls is not None and not issubclass(cls, LabelledFiles)):  # such as CIFAR10
        return
    if split is None and is_split_of_training(of_data, str(data.root)):  # an early checkpoint
        return
    if split is None or split.get("test") != data.fingerprints["test"]:
        place = arguments.get("table") or arguments.get("urls") or arguments.get("root") or ""
        print_once(
            f"note: {printable(str(checkpoint))} was trained on {printable(f'{kind} {place}'.strip())}, and held out "
            f"other images than these {len(data.sets['test'].labels):,} test images: it may have seen some of them"
        )


def _drawn(images: "ImageSet", count: int | None) -> "ImageSet":
    """Return a random sample of the images, the same in each run; all for None."""
    import torch

    if count is None:
        return images
    return images.subset(torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))[:count])


def _batches(images: "ImageSet", split: str) -> Iterator[Tensor]:
    """Yield uint8 images; files are decoded."""
    import torch

    parts = torch.arange(len(images.labels)).split(BATCH)
    for part in progress(parts, f"batches of {BATCH} {split} images"):
        yield images.decode(part)[0]
