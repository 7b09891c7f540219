"""The arguments of the model that tensors belong to, read from their names and shapes."""

import math

from torch import Tensor

from vit.weights.formats import Arguments, State

USUAL_HEAD_DIM = 64


def arguments_of(state: State, stated: Arguments) -> Arguments:
    """Return the arguments of ``VisionTransformer`` for tensors under our names.

    Args:
        state: The tensors.
        stated: Arguments that something else tells, such as a file beside them; they count more than the tensors.

    Raises:
        ValueError: If a tensor that every model has is missing or has other axes, or the grid of patches is not square
            and not stated.
    """
    patch_weight = _tensor(state, "patch_embed.proj.weight", 4)
    embed_dim, in_channels, *patch_size = patch_weight.shape
    hidden, expanded = _tensor(state, "blocks.0.mlp.fc2.weight", 2), _tensor(state, "blocks.0.mlp.fc1.weight", 2)
    registers, head = state.get("reg_token"), state.get("head.weight")
    arguments: Arguments = {
        "patch_size": _one_or_two(patch_size),
        "in_channels": in_channels,
        "num_classes": 0 if head is None else head.shape[0],
        "embed_dim": embed_dim,
        "depth": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        "num_heads": _num_heads(state, embed_dim),
        "mlp_ratio": _ratio(hidden.shape[1], embed_dim),
        "mlp": "swiglu" if expanded.shape[0] == 2 * hidden.shape[1] else "gelu",
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "class_token": "cls_token" in state,
        "num_registers": 0 if registers is None else registers.shape[1],
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "pre_norm": "norm_pre.weight" in state,
        "pool": _pool(state),
    }
    arguments |= stated
    has_fc_norm = "fc_norm.weight" in state
    arguments["fc_norm"] = None if has_fc_norm == (arguments["pool"] == "mean") else has_fc_norm
    positions = state.get("pos_embed")
    if positions is None:
        arguments.setdefault("pos_embed", "none")
        arguments.setdefault("image_size", 224)
        return arguments
    return arguments | _grid(positions, arguments)


def _tensor(state: State, name: str, axes: int) -> Tensor:
    if name not in state:
        raise ValueError(f"{name} is missing, which every Vision Transformer has")
    if state[name].ndim != axes:
        raise ValueError(f"{name} has shape {tuple(state[name].shape)}, and {axes} axes are expected")
    return state[name]


def _num_heads(state: State, embed_dim: int) -> int:
    """Return the number of heads: by the norm of queries, or as many as are 64 channels wide."""
    norm = state.get("blocks.0.attn.q_norm.weight")
    head_dim = USUAL_HEAD_DIM if norm is None else norm.shape[0]
    return max(embed_dim // head_dim, 1)


def _ratio(width: int, embed_dim: int) -> float:
    """Return a ratio for which ``int(embed_dim * ratio)`` is the width of the hidden layer."""
    ratio = width / embed_dim
    return ratio if int(embed_dim * ratio) == width else math.nextafter(ratio, math.inf)


def _pool(state: State) -> str:
    head, width = state.get("head.weight"), state["patch_embed.proj.weight"].shape[0]
    if "attn_pool.latent" in state:
        return "map"
    if head is not None and head.shape[1] == 2 * width:
        return "cls+mean"
    return "mean" if "fc_norm.weight" in state or "cls_token" not in state else "cls"


def _one_or_two(sizes: list[int]) -> int | tuple[int, int]:
    rows, columns = sizes
    return rows if rows == columns else (rows, columns)


def _grid(positions: Tensor, arguments: Arguments) -> Arguments:
    """Return the image size, and whether the prefix tokens have positions."""
    count, prefix = positions.shape[1], int(arguments["class_token"]) + arguments["num_registers"]
    patch = arguments["patch_size"]
    patch = (patch, patch) if isinstance(patch, int) else patch
    if "image_size" in arguments:
        size = arguments["image_size"]
        size = (size, size) if isinstance(size, int) else size
        patches = (size[0] // patch[0]) * (size[1] // patch[1])
        if count not in (patches, patches + prefix):
            raise ValueError(
                f"pos_embed has {count} positions, and images of {size} pixels have {patches} patches of {patch} and "
                f"{prefix} other tokens: give the image_size of the training"
            )
        return {"no_embed_class": bool(prefix) and count == patches}
    for patches in (count - prefix, count):
        side = math.isqrt(max(patches, 0))
        if side and side**2 == patches:
            size = _one_or_two([side * patch[0], side * patch[1]])
            return {"image_size": size, "no_embed_class": bool(prefix) and patches == count}
    raise ValueError(
        f"pos_embed has {count} positions, which are no square grid of patches: give the image_size of the training, "
        "such as image_size=(32, 64)"
    )
