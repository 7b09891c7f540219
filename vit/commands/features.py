"""The command ``vit-attention features``: the features of the images in a folder."""

import argparse
import copy
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from vit.commands.models import add_checkpoint, find_model, tell_assumed
from vit.commands.parser import Parser, add_max_pixels, add_overwrite, run
from vit.features import extract, save_features
from vit.inference import OptimizedModel, optimize
from vit.model.vision_transformer import VisionTransformer
from vit.support.files import check_outputs
from vit.support.printable import printable
from vit.support.progress import progress
from vit.weights import load

BATCH = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention features``: write the features of the images in a folder."""
    parser = Parser(
        prog="vit-attention features",
        description="Write what the head of a model reads, for each image below a folder: a safetensors file with the "
        "tensor 'features' (images, channels), and the names of the images in its metadata ('files').",
        epilog="Example: vit-attention features photos --checkpoint cifar10 -o features.safetensors",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", type=Path, help="folder of images, or one image")
    add_checkpoint(parser)
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="safetensors file to write")
    add_max_pixels(parser)
    add_overwrite(parser)
    add(
        "--optimize",
        choices=["float32", "bfloat16"],
        help="compute by a program of vit.optimize in this type: making it takes seconds, which many images win back",
    )
    run(parser, arguments, _features)


def _features(options: argparse.Namespace) -> None:
    from vit.commands.photographs import find_images, read_pixels, without_damaged
    from vit.data.formats import MAX_PIXELS

    max_pixels = options.max_pixels or MAX_PIXELS
    if options.output.suffix != ".safetensors":
        raise ValueError(f"{options.output} does not end in .safetensors: features are written to such a file")
    check_outputs([options.output], options.overwrite)
    files = without_damaged(find_images([options.folder]), max_pixels)
    model: VisionTransformer = load(find_model(options.checkpoint))
    tell_assumed(model)
    pixels = (read_pixels([file], model, max_pixels) for file in progress(files, "images"))
    parts = iter(lambda: [*islice(pixels, BATCH)], [])
    program = _program(model, options.optimize) if options.optimize else None
    found = extract(model, map(torch.cat, parts), program)
    root = options.folder if options.folder.is_dir() else options.folder.parent
    save_features(found, [file.relative_to(root).as_posix() for file in files], options.output)
    print(f"{printable(str(options.output))}: {len(files):,} images, {found.shape[1]} channels each")


def _program(model: VisionTransformer, dtype: str) -> OptimizedModel:
    headless = copy.deepcopy(model)
    headless.reset_classifier(0)
    return optimize(headless, getattr(torch, dtype))
