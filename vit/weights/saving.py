"""Saves models, in this package's format or in that of another library."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vit.model.vision_transformer import VisionTransformer
from vit.support.files import replacing
from vit.weights.architecture import DEFAULTS, TRAINING_ONLY, arguments_of
from vit.weights.formats import WRITABLE, detect, format_for
from vit.weights.formats.format import Arguments, Format, State
from vit.weights.formats.timm_config import timm_config_of
from vit.weights.formats.transformers_config import MULTILABEL, config_of
from vit.weights.own_files import check_unchanged, save_own_file
from vit.weights.surgery import canonicalize
from vit.weights.tensor_files import write_safetensors

SUFFIXES = {
    "vit": (".safetensors",),
    "timm": (".safetensors", ".pth", ".bin", ""),
    "torchvision": (".safetensors", ".pth", ".bin"),
    "google": (".npz",),
    "transformers": ("",),
}
FOLDER_FILES = ("model.safetensors", "config.json", "preprocessor_config.json")
# Arguments that a file need not tell: they matter to the training alone, or the caller chooses them.
UNTOLD = (
    *TRAINING_ONLY,
    *("pos_embed", "pos_embed_init", "pos_embed_interpolation"),
    *("image_size", "patch_size", "patch_stride", "pad_images", "fc_norm"),
)


def save(model: VisionTransformer, path: str | Path, format: str = "vit") -> None:
    """Write a model to a file that ``vit.load`` reads, or in the format of another library.

    A file of format "vit" holds the weights in their precision, ``model.config`` and, if the model has it,
    ``model.pretrained_cfg``. For half the size, save a copy in half precision:
    ``vit.save(copy.deepcopy(model).half(), path)``.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "tiny.safetensors"
    >>> model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3)
    >>> save(model, path)
    >>> import vit
    >>> vit.load(path).patch_embed.grid_size
    (2, 2)
    >>> save(model, path.with_name("folder"), format="transformers")

    Args:
        model: The model.
        path: The file: .safetensors for "vit", .npz for "google", .safetensors, .pth or .bin for "timm" and
            "torchvision". For "transformers" it is a folder, which its ``from_pretrained`` reads. For "timm" it may be
            one, which ``timm.create_model("local-dir:FOLDER")`` and transformers' TimmWrapper read.
        format: "vit", "timm", "transformers", "torchvision" or "google".

    Raises:
        ValueError: If the path does not fit the format, the format has no place for a part of the model, or the model
            has other modules than its ``config`` builds.
    """
    path = Path(path)
    if format not in WRITABLE:
        raise ValueError(f"unknown format {format!r}: choose one of {', '.join(WRITABLE)}")
    check_unchanged(model)
    if format == "vit":
        save_own_file(model, path)
        return
    _check_suffix(path, format)
    library, state = to_format(model, format)
    if not path.suffix:
        _write_folder(model, library, state, path)
    elif path.suffix == ".npz":
        _write_npz(state, path)
    elif path.suffix == ".safetensors":
        write_safetensors(state, path, {"format": "pt"})
    else:
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            torch.save(state, file)


def written_files(path: Path, format: str) -> list[Path]:
    """Return the files that ``save`` may write for a path: for some formats, those of a folder.

    Raises:
        ValueError: If the path does not fit the format.
    """
    _check_suffix(path, format)
    return [path] if path.suffix else [path / name for name in FOLDER_FILES]


def _check_suffix(path: Path, format: str) -> None:
    if path.suffix not in SUFFIXES[format]:
        ends = [f"end in {suffix}" if suffix else "be a folder, without a suffix" for suffix in SUFFIXES[format]]
        raise ValueError(f"{path} must {' or '.join(ends)}, for format {format!r}")


def to_format(model: VisionTransformer, format: str) -> tuple[Format, State]:
    """Return the format in which a library has such a model, and the model's tensors in it.

    The tensors are read again and compared, so that no part of the model is lost.
    """
    arguments = model.config
    library, prefix = format_for(format, arguments)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if "rope" in arguments["pos_embed"]:
        del state["pos_embed"]  # zeros, of no use
    if arguments["pool"] not in library.pools or (arguments["pool"] == "cls+mean" and not model.num_classes):
        raise ValueError(
            f"{library.name} has no pool {arguments['pool']!r}, but {' or '.join(map(repr, library.pools))}: save the "
            "model in format 'vit'"
        )
    for name, value in library.requires(arguments).items():
        if arguments[name] != value:
            raise ValueError(
                f"{library.name} has {name} {value!r}, and not {arguments[name]!r}: save the model in format 'vit'"
            )
    written = library.write(state, {"h": arguments["num_heads"]}, prefix)
    _check_read_again(arguments, library, written)
    return library, written


def _check_read_again(arguments: Arguments, library: Format, written: State) -> None:
    """Check that the written tensors are read as those of the same model."""
    detected = detect(written)
    if detected is None or detected[0] is not library:
        foreign = [name for name in library.lacks if any(full.endswith(name) for full in written)]
        reason = f"needs {', '.join(library.needs)}, which this model has not"
        if foreign:
            reason = f"has no {', '.join(foreign)}, which this model has"
        raise ValueError(f"{library.name} {reason}: save the model in format 'vit'")
    reading = library.read(written, detected[1])
    stated = dict(library.defaults) | reading.arguments
    stated |= {name: arguments[name] for name in ("image_size", "num_heads", *library.from_config)}
    found = DEFAULTS | arguments_of(reading.state, stated)
    if not arguments["num_classes"] and {found["pool"], arguments["pool"]} <= {"cls", "mean", "cls+mean"}:
        found["pool"] = arguments["pool"]  # without a head, it is the caller's choice
    theirs, ours = canonicalize(found), canonicalize(arguments)
    for name in (name for name in ours if name not in UNTOLD and theirs[name] != ours[name]):
        raise ValueError(
            f"{library.name} has no place for {name} {arguments[name]!r}, and would read {found[name]!r}: save the "
            "model in format 'vit'"
        )


def _write_folder(model: VisionTransformer, library: Format, state: State, folder: Path) -> None:
    data = getattr(model, "pretrained_cfg", {})
    if library.name.startswith("timm"):
        config = timm_config_of(model.config, data)
    else:
        config = config_of(model.config, library, data.get("class_names"))
        if data.get("thresholds") is not None:  # else transformers would take the softmax of the labels
            config["problem_type"] = MULTILABEL
    weights, description, images = FOLDER_FILES
    write_safetensors(state, folder / weights, {"format": "pt"})
    files = {description: config}
    if "mean" in data and not library.name.startswith("timm"):
        files[images] = _processor_of_transformers(data, model)
    for name, contents in files.items():
        with replacing(folder / name) as unfinished:
            unfinished.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _processor_of_transformers(data: Mapping[str, Any], model: VisionTransformer) -> dict[str, Any]:
    """Return a preprocessor_config.json that prepares images as this package does.

    Oblong images are stretched there, since transformers cuts no oblong centre out of a photograph of any shape.
    """
    image_size, in_channels = model.patch_embed.image_size, model.patch_embed.in_channels
    size = {"height": image_size[0], "width": image_size[1]}
    common = {"image_mean": list(data["mean"]), "image_std": list(data["std"]), "resample": 3}  # bicubic
    if data.get("stretch") or image_size[0] != image_size[1]:  # transformers scales the shorter edge to one number
        if (crop := data.get("crop_ratio") or 1.0) == 1:
            return {"image_processor_type": "ViTImageProcessor", "size": size} | common
        scaled = {name: round(side / crop) for name, side in size.items()}
        cropped = {"size": scaled, "do_center_crop": True, "crop_size": size}
        return {"image_processor_type": "DeiTImageProcessor"} | cropped | common
    shortest = round(image_size[0] / (data.get("crop_ratio") or 1.0))
    cropped = {"size": {"shortest_edge": shortest}, "do_center_crop": True, "crop_size": size}
    cropped["do_convert_rgb"] = in_channels == 3
    return {"image_processor_type": "CLIPImageProcessor"} | cropped | common


def _write_npz(state: State, path: Path) -> None:
    import numpy as np

    wide = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in state.items()}
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **{name: tensor.cpu().numpy() for name, tensor in wide.items()})
