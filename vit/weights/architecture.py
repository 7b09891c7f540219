"""Arguments of models: their defaults, what the names and shapes of tensors tell, and a model built from them."""

import inspect
import math
import warnings

import torch
from torch import Tensor

from vit.model.embedding import Size, to_pair
from vit.model.presets import PRESETS
from vit.model.vision_transformer import VisionTransformer
from vit.weights.formats.format import Arguments, State

DEFAULTS: Arguments = {
    name: parameter.default for name, parameter in inspect.signature(VisionTransformer).parameters.items()
}
TRAINING_ONLY = ("dropout", "patch_drop", "drop_path", "grad_checkpointing")  # arguments that act in training alone

MOST_PATCHES = 2**20


class _Outline(VisionTransformer):
    """A model without values: to draw them on the meta device, torch would import its compiler, which takes 2 s."""

    def init_weights(self) -> None:
        """Draw nothing."""


def outline(arguments: Arguments, origin: str) -> VisionTransformer:
    """Return a model whose tensors have shapes but no values, on the meta device."""
    with torch.device("meta"):
        return build(arguments, origin, _Outline)


def build(arguments: Arguments, origin: str, kind: type[VisionTransformer] = VisionTransformer) -> VisionTransformer:
    """Return a model with new weights."""
    unknown = [name for name in arguments if name not in DEFAULTS]
    try:
        if unknown:
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
        return kind(**arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, LookupError) as error:
        raise ValueError(f"{origin} describes a model that cannot be built: {error}") from error


def arguments_of(state: State, stated: Arguments, image_size: Size | None = None) -> Arguments:
    """Return the arguments of ``VisionTransformer`` for tensors under our names.

    Args:
        state: The tensors.
        stated: Arguments that are known otherwise, such as from a config; they overrule the tensors.
        image_size: Size that the caller wants; if the grid is not square, it is taken for that of the training.

    Raises:
        ValueError: If a tensor that every model has is missing or has other axes, or the grid of patches is not square
            and not stated.
    """
    patch_weight = _tensor(state, "patch_embed.proj.weight", 4)
    embed_dim, in_channels, *patch_size = patch_weight.shape
    hidden, expanded = _tensor(state, "blocks.0.mlp.fc2.weight", 2), _tensor(state, "blocks.0.mlp.fc1.weight", 2)
    registers, head = state.get("reg_token"), state.get("head.weight")
    arguments: Arguments = {
        "patch_size": _one_or_two(*patch_size),
        "in_channels": in_channels,
        "num_classes": 0 if head is None else head.shape[0],
        "embed_dim": embed_dim,
        "depth": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        "mlp_ratio": _ratio(hidden.shape[1], embed_dim),
        "mlp": "swiglu" if expanded.shape[0] == 2 * hidden.shape[1] else "gelu",
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "class_token": "cls_token" in state,
        "num_registers": 0 if registers is None else registers.shape[1],
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "pre_norm": "norm_pre.weight" in state,
        "pool": _read_pool(state, embed_dim),
    }
    arguments |= stated
    if "num_heads" not in arguments:
        arguments["num_heads"] = _read_num_heads(state, arguments)
    has_fc_norm = "fc_norm.weight" in state
    arguments["fc_norm"] = None if has_fc_norm == (arguments["pool"] == "mean") else has_fc_norm
    positions = state.get("pos_embed")
    if positions is not None:
        return arguments | _read_grid(positions, arguments, image_size)
    if "rope" not in arguments.get("pos_embed", ""):
        raise ValueError("pos_embed is missing: positions that are computed, and not stored, are read of DINOv3 only")
    arguments.setdefault("image_size", 224)
    (rows, columns), (p, q) = (to_pair(arguments[name]) for name in ("image_size", "patch_size"))
    if rows * columns > MOST_PATCHES * p * q:
        raise ValueError(
            f"images of {rows} x {columns} pixels have more than {MOST_PATCHES:,} patches: take a smaller "
            "image_size, or a larger patch_size"
        )
    return arguments


def _tensor(state: State, name: str, axes: int) -> Tensor:
    if name not in state:
        raise ValueError(f"{name} is missing, which every Vision Transformer has: give all its weights")
    if state[name].ndim != axes:
        raise ValueError(f"{name} has shape {tuple(state[name].shape)}, and {axes} axes are expected")
    return state[name]


def _read_num_heads(state: State, arguments: Arguments) -> int:
    """Return the number of heads, from the norm of queries or from the published model with tensors of these shapes."""
    norm, width = state.get("blocks.0.attn.q_norm.weight"), arguments["embed_dim"]
    if norm is not None:
        return width // norm.shape[0]
    fits = {preset["num_heads"] for preset in PRESETS.values() if _has_shapes(preset, arguments, state)}
    if len(fits) != 1:
        raise ValueError(f"its tensors do not tell how many heads share the {width} channels: give num_heads=...")
    return fits.pop()


def _has_shapes(preset: Arguments, arguments: Arguments, state: State) -> bool:
    """Whether the tensors, apart from the head, have the shapes of a published model."""
    if any(preset[name] != arguments[name] for name in ("embed_dim", "depth", "patch_size")):
        return False
    expected = outline(preset, "a preset").state_dict()
    has_no_table = "rope" in preset.get("pos_embed", "")
    return all(
        name in state and state[name].shape == tensor.shape
        for name, tensor in expected.items()
        if not name.startswith("head.") and not (has_no_table and name == "pos_embed")
    )


def _ratio(width: int, embed_dim: int) -> float:
    """Return a ratio for which ``int(embed_dim * ratio)`` is the width of the hidden layer."""
    ratio = width / embed_dim
    return ratio if int(embed_dim * ratio) == width else math.nextafter(ratio, math.inf)


def _read_pool(state: State, embed_dim: int) -> str:
    if "attn_pool.latent" in state:
        return "map"
    if "head.weight" in state and state["head.weight"].shape[1] == 2 * embed_dim:
        return "cls+mean"
    return "mean" if "fc_norm.weight" in state or "cls_token" not in state else "cls"


def _one_or_two(rows: int, columns: int) -> Size:
    return rows if rows == columns else (rows, columns)


def _read_grid(positions: Tensor, arguments: Arguments, wanted: Size | None) -> Arguments:
    """Return the image size, and whether the prefix tokens have positions."""
    count, prefix = positions.shape[1], int(arguments["class_token"]) + arguments["num_registers"]
    p, q = to_pair(arguments.get("patch_stride") or arguments["patch_size"])
    if "image_size" in arguments:
        found = _fit_grid(count, prefix, (p, q), arguments["image_size"])
        if found is None:
            raise ValueError(
                f"pos_embed has {count} positions, which are not those of images of {arguments['image_size']} pixels "
                f"with a patch every {(p, q)} pixels and {prefix} other tokens: give the image_size of the training"
            )
        return found
    with_prefix, without = _read_side(count - prefix), _read_side(count)
    fitted = None if wanted is None else _fit_grid(count, prefix, (p, q), wanted)
    if fitted is not None and (with_prefix is None or to_pair(wanted)[0] == to_pair(wanted)[1]):
        return fitted
    if with_prefix is None and without is None:
        raise ValueError(
            f"pos_embed has {count} positions, which are no square grid of patches: give the image_size of the "
            "training, such as image_size=(32, 64)"
        )
    side = with_prefix or without
    if fitted is not None:
        read, other = (side * p, side * q), to_pair(fitted["image_size"])
        warnings.warn(
            f"pos_embed has {count} positions, as many as images of {read} and of {other} pixels need: it is read as "
            f"of {read}; if it was trained on {other}, build a VisionTransformer with that image_size, and call its "
            "load_state_dict",
            stacklevel=2,
        )
    return {"image_size": _one_or_two(side * p, side * q), "no_embed_class": with_prefix is None and bool(prefix)}


def _read_side(patches: int) -> int | None:
    """Return the side of a square grid of patches, or None if they are no square."""
    side = math.isqrt(max(patches, 0))
    return side if side and side**2 == patches else None


def _fit_grid(count: int, prefix: int, patch: tuple[int, int], size: Size) -> Arguments | None:
    """Return the size in whole patches, and whether prefix tokens have positions; None if ``count`` does not fit."""
    (rows, columns), (p, q) = to_pair(size), patch
    patches = (rows // p) * (columns // q)
    if count not in (patches, patches + prefix):
        return None
    # Other libraries leave out the pixels beyond whole patches.
    whole = _one_or_two(rows // p * p, columns // q * q)
    return {"image_size": whole, "no_embed_class": bool(prefix) and count == patches}
