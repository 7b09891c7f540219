"""The command ``vit-attention weights``: what a file of weights holds, and its conversion to another format."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.commands.models import HELP, find_model
from vit.commands.parser import Parser, add_overwrite, run
from vit.model.mlp import MLPS
from vit.model.vision_transformer import VisionTransformer
from vit.support.files import check_outputs
from vit.support.printable import printable
from vit.weights.export import export, exported_files
from vit.weights.formats import WRITABLE
from vit.weights.loading import DEFAULTS, load
from vit.weights.saving import save, written_files

PROGRAMS = {"onnx": ".onnx", "openvino": ".xml", "aoti": ".aoti"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention weights``; exit with status 2 at a user's mistake."""
    parser = Parser(
        prog="vit-attention weights",
        description="Show what a file of weights holds, or convert it to another format.",
        epilog="Example: vit-attention weights convert vit_tiny.safetensors tiny.pth --to torchvision",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    show = commands.add_parser("show", help="format, arguments of the model, and what became of each tensor")
    convert = commands.add_parser("convert", help="write the weights in another format")
    for part in (show, convert):
        part.add_argument("file", metavar="MODEL", help=HELP)
        part.add_argument("--num_heads", type=int, metavar="N", help="attention heads, which most files do not tell")
        part.add_argument(
            "--image_size",
            type=int,
            nargs="+",
            metavar="N",
            help="rows and columns, or one number: those of the training where tensors do not tell, others resize",
        )
        part.add_argument("--mlp", choices=MLPS, help="activation, which most files do not tell")
        part.add_argument("--norm_eps", type=float, metavar="X", help="number that the norms add to the variance")
        part.add_argument("--loose", action="store_true", help="leave out tensors that the backbone lacks")
    convert.add_argument("output", type=Path, help="file to write; for transformers a folder")
    convert.add_argument("--to", required=True, choices=(*WRITABLE, *PROGRAMS), help="format to write")
    add_overwrite(convert)
    run(parser, arguments, _show_or_convert)


def _show_or_convert(options: argparse.Namespace) -> None:
    if options.command == "convert":
        check_outputs(_outputs(options.output, options.to), options.overwrite)
    asked = {name: getattr(options, name) for name in ("num_heads", "mlp", "norm_eps")}
    wanted: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if options.image_size is not None:
        if len(options.image_size) > 2:
            raise ValueError(f"--image_size {options.image_size} must be one number, or rows and columns")
        wanted["image_size"] = tuple(options.image_size) if len(options.image_size) == 2 else options.image_size[0]
    model = load(find_model(options.file), strict=not options.loose, **wanted)
    if options.command == "convert":
        _write(model, options.output, options.to)
    print(printable(str(model.load_report), keep="\n"))
    count = sum(parameter.numel() for parameter in model.parameters())
    changed = {name: value for name, value in model.config.items() if value != DEFAULTS[name]}
    print(
        f"{count:,} parameters; VisionTransformer({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
    )
    if options.command == "convert":
        print(f"written as {options.to}: {printable(str(options.output))}")
        if options.to in ("google", "torchvision") or (options.to == "timm" and options.output.suffix):
            settings = ", ".join(f"{name} {model.pretrained_cfg.get(name)}" for name in ("mean", "std", "crop_ratio"))
            print(f"such a file does not tell {settings} and the names of the classes: its reader needs them")


def _outputs(path: Path, to: str) -> list[Path]:
    if to not in PROGRAMS:
        return written_files(path, to)
    if path.suffix != PROGRAMS[to]:
        raise ValueError(f"{path} must end in {PROGRAMS[to]}, for format {to!r}")
    return exported_files(path)


def _write(model: VisionTransformer, path: Path, to: str) -> None:
    if to in PROGRAMS:
        export(model, path)
    else:
        save(model, path, format=to)
