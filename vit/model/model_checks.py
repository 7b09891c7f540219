"""Checks of the arguments and inputs of ``VisionTransformer`` and ``PatchEmbed``.

If a check fails, it raises a ValueError that quotes the values and names a remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from vit.attention import AttentionName
from vit.support.checks import (
    check_natural,
    check_non_negative,
    check_positive,
    check_positive_int,
    check_share,
    check_switch,
)

SWITCHES = (
    *("qkv_bias", "tie_qkv", "tie_kv", "class_token", "no_embed_class", "qk_norm", "grad_checkpointing", "pre_norm"),
    *("pad_images", "mask_token"),
)


def check_arguments(config: dict[str, Any]) -> None:
    """Check the numbers among the arguments of ``VisionTransformer``, and whether its arguments fit together."""
    for name in ("embed_dim", "depth", "num_heads"):
        check_positive_int(name, config[name])
    for name in ("num_classes", "num_registers"):
        check_natural(name, config[name])
    for name in SWITCHES:
        check_switch(name, config[name])
    if config["fc_norm"] is not None and not isinstance(config["fc_norm"], bool):
        raise ValueError(f"fc_norm ({config['fc_norm']!r}) must be True, False or None")
    check_positive("mlp_ratio", config["mlp_ratio"], "4 is usual")
    check_positive("norm_eps", config["norm_eps"], "1e-6 is usual")
    for name in ("dropout", "drop_path"):
        check_share(name, config[name], "0.1 is usual")
    if config["layer_scale"] is not None:
        check_non_negative("layer_scale", config["layer_scale"], "1e-4 is usual, None leaves it out")
    _check_pool(config["pool"], config)


def _check_pool(pool: str, config: dict[str, Any]) -> None:
    if "cls" in pool and not config["class_token"]:
        raise ValueError(f"pool {pool!r} reads the class token, but class_token is False: use pool 'mean'")
    if "dist" in pool and not config["num_registers"]:
        raise ValueError(f"pool {pool!r} reads the first register, but num_registers is 0: set it to 1")


def check_new_pool(model: nn.Module, pool: str) -> None:
    """Check that a model has all modules for another pooling."""
    _check_pool(pool, model.config)
    has_norm = isinstance(model.fc_norm, nn.LayerNorm)
    if pool == "map" or (has_norm and count_features(pool, model.embed_dim) != model.num_features):
        raise ValueError(
            f"pool {pool!r} needs other weights than pool {model.pool!r}: let vit.load(model, pool={pool!r}) make them"
        )


def count_features(pool: str, embed_dim: int) -> int:
    """Return the number of channels of the pooled feature."""
    return 2 * embed_dim if "+" in pool else embed_dim


def check_resizable(model: nn.Module, resized: nn.Module) -> None:
    """Check that only positions and patch weights differ in shape between a model and its resized copy."""
    if model.config["pos_embed"] == "rope_eva" and model.patch_embed.grid_size != resized.patch_embed.grid_size:
        raise ValueError(
            "positions 'rope_eva' are relative to the grid of the training, which would be lost: leave the size as it "
            "is, and pass images of any size"
        )
    expected, resizable = resized.state_dict(), ("pos_embed", "patch_embed.proj.weight")
    for name, tensor in model.state_dict().items():
        shape = expected[name].shape if name in expected else tensor.shape
        if name not in resizable and tensor.shape != shape:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, and {tuple(shape)} for images and patches of that size: attention "
                f"{model.config['attention']!r} learns a weight for each patch, and cannot be resized"
            )


def mechanisms_of_blocks(
    attention: AttentionName | Sequence[AttentionName], attention_kwargs: dict[str, Any] | None, depth: int
) -> list[tuple[AttentionName, dict[str, Any] | None]]:
    """Return the mechanism of each block and its arguments.

    >>> mechanisms_of_blocks(["window", "softmax"], {"window": {"window": 2}}, depth=2)
    [('window', {'window': 2}), ('softmax', None)]
    """
    arguments = {} if attention_kwargs is None else attention_kwargs
    if not isinstance(arguments, Mapping):
        raise ValueError(f"attention_kwargs ({arguments!r}) must be a dict of arguments by name, or None")
    if isinstance(attention, str):
        return [(attention, attention_kwargs)] * depth
    if not isinstance(attention, Sequence):
        raise ValueError(f"attention ({attention!r}) must be the name of a mechanism, or a list of them")
    names = list(attention)
    if len(names) != depth:
        raise ValueError(f"attention names {len(names)} mechanisms, and depth is {depth}: name one for each block")
    stray = [name for name, options in arguments.items() if name not in names or not isinstance(options, dict)]
    if stray:
        raise ValueError(
            f"attention_kwargs has {stray[0]!r}: {arguments[stray[0]]!r}, but for a list of mechanisms it has the "
            f"arguments of each by its name, such as {{{names[0]!r}: {{...}}}}"
        )
    return [(name, arguments.get(name)) for name in names]


def check_patch_drop(patch_drop: float, mechanism: nn.Module, attention: str) -> None:
    """Check that a mechanism works without the patches that ``patch_drop`` drops."""
    if patch_drop and "grid" in mechanism.takes:
        raise ValueError(f"attention {attention!r} needs the whole grid of patches: set patch_drop ({patch_drop}) to 0")


def encodes_as_usual(model: nn.Module) -> bool:
    """Return whether ``forward_features`` is that of this package, and was not overridden by a user."""
    return "forward_features" not in vars(model) and type(model).forward_features.__module__.startswith("vit.")


def check_takes_some_patches(blocks: Iterable[nn.Module], name: str) -> None:
    """Check that the attention of all blocks works without some of the patches, which an argument leaves out."""
    for number, block in enumerate(blocks):
        mechanism = getattr(getattr(block, "attn", None), "mechanism", None)  # a user's own block may have none
        if "grid" in getattr(mechanism, "takes", ()):
            raise ValueError(
                f"attention of block {number} ({type(mechanism).__name__}) needs all patches of the grid: leave {name} "
                "out, or take softmax attention"
            )


def check_overlap(patch_size: tuple[int, int], patch_stride: tuple[int, int]) -> None:
    """Check that patches cover the image and can be centred on their cells."""
    overlap = [patch - stride for patch, stride in zip(patch_size, patch_stride, strict=True)]
    if min(overlap) < 0 or any(pixels % 2 for pixels in overlap):
        raise ValueError(
            f"patch_stride {patch_stride} must be patch_size {patch_size} less an even number of pixels, "
            "so that patches are centred on cells: take half of an even patch_size"
        )


def check_divides(patch_embed: nn.Module, rows: int, columns: int) -> None:
    """If images are not padded, check that an image is cut into whole cells."""
    p, q = patch_embed.patch_stride
    if not patch_embed.pad_images and (rows % p or columns % q):
        name = "patch_size" if patch_embed.patch_stride == patch_embed.patch_size else "patch_stride"
        raise ValueError(
            f"image_size ({rows}, {columns}) must be a multiple of {name} ({p}, {q}): resize the images to "
            f"({max(rows // p, 1) * p}, {max(columns // q, 1) * q}), change the patch, or set pad_images"
        )


def check_images(patch_embed: nn.Module, images: Tensor) -> None:
    """Check the shape, type and device of a batch of images."""
    if isinstance(images, torch.fx.Proxy):  # a trace has no sizes yet
        return
    channels = patch_embed.in_channels
    if images.ndim != 4 or images.shape[1] != channels:
        raise ValueError(
            f"images have shape {tuple(images.shape)}, but this model takes (batch, {channels}, rows, columns): check "
            f"in_channels ({channels}), and add the batch axis with images[None]"
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images are {images.dtype}, but this model takes images of floating point: convert by images.float() / "
            "255, then normalise"
        )
    # Compiled and exported programs skip this check: images of an exported program have their own type and device.
    if not torch.compiler.is_compiling():
        _check_fits_weights(patch_embed.proj.weight, images)
    check_divides(patch_embed, *images.shape[-2:])


def check_numbers_of_patches(name: str, numbers: Tensor, batch: int, patches: int) -> None:
    """Check numbers of patches (B, K): one row per image, each number the index of a patch."""
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.ndim != 2 or len(numbers) != batch:
        raise ValueError(
            f"{name} are {numbers.dtype} of shape {tuple(numbers.shape)}: give a row of numbers of patches for each of "
            f"the {batch} images"
        )
    numbers = numbers.long()  # the comparison with a narrow integer would wrap the number of patches
    if not torch.compiler.is_compiling() and numbers.numel() and not 0 <= numbers.min() <= numbers.max() < patches:
        raise ValueError(
            f"{name} has numbers from {numbers.min()} to {numbers.max()}: the patches have 0 to {patches - 1}"
        )


def check_mixed(images: Sequence[Tensor]) -> None:
    """Check a list of images of several sizes."""
    strange = [type(image).__name__ for image in images if not isinstance(image, Tensor)]
    if strange:
        raise ValueError(
            f"{len(strange)} of {len(images)} images are {strange[0]}: make tensors of (channels, rows, columns)"
        )
    shapes = [tuple(image.shape) for image in images]
    if not shapes or any(len(shape) != 3 for shape in shapes):
        raise ValueError(f"images have the shapes {shapes}: give a list of at least one (channels, rows, columns)")


def _check_fits_weights(weight: Tensor, images: Tensor) -> None:
    if images.device != weight.device:
        raise ValueError(f"images are on {images.device} and the weights on {weight.device}: move one with .to(device)")
    if images.dtype != weight.dtype and not torch.is_autocast_enabled(images.device.type):
        raise ValueError(f"images are {images.dtype} and the weights {weight.dtype}: convert one with .to(dtype)")
    if 0 in images.shape[1:]:
        raise ValueError(f"images have shape {tuple(images.shape)}: give at least one pixel")


def check_output_format(model: nn.Module, output_fmt: str) -> None:
    """Check that the features of ``forward_intermediates`` can be returned in a format."""
    if output_fmt not in ("NCHW", "NLC"):
        raise ValueError(f"unknown output_fmt {output_fmt!r}: choose 'NCHW' or 'NLC'")
    if output_fmt == "NCHW" and model.patch_drop.training and model.patch_drop.rate:
        raise ValueError(
            f"patch_drop ({model.patch_drop.rate}) drops patches while training, and the others form no grid: call "
            "model.eval() first, or take output_fmt 'NLC'"
        )


def chosen_blocks(indices: int | Sequence[int] | None, depth: int) -> set[int]:
    """Return the numbers of the chosen blocks. An int n means the last n, None all. A negative number counts backwards.

    >>> chosen_blocks(2, depth=6), chosen_blocks([0, -1], depth=6)
    ({4, 5}, {0, 5})
    """
    if indices is None:
        return set(range(depth))
    if isinstance(indices, Integral):
        chosen = set(range(depth - int(indices), depth))
    else:
        chosen = {int(i) + depth if i < 0 else int(i) for i in indices}
    if not chosen or not chosen <= set(range(depth)):
        raise ValueError(f"indices ({indices}) must name blocks of a model of depth ({depth})")
    return chosen
