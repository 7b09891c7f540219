"""Starts a model from trained weights of another patch size, another grid, or other classes.

Letters in the einops patterns: d embedding channels, c image channels, p q rows and columns of a patch, m n those of
the new patch.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.embedding import Size, resize_positions, to_pair
from vit.model import VisionTransformer
from vit.weights.loading import load
from vit.weights.matching import check_same_tensors

# Arguments that may differ: their weights are resized or new, or they are of the training alone.
FREE = {"image_size", "patch_size", "patch_stride", "num_classes", "pool", "fc_norm", "pos_embed", "pos_embed_init"}
OF_GRID = ("linformer", "positional")  # mechanisms whose weights have the shape of the grid
FREE |= {"pos_embed_interpolation", "dropout", "patch_drop", "drop_path", "grad_checkpointing"}


def start_from(model: VisionTransformer, path: str | Path, class_names: Sequence[str] | None = None) -> str:
    """Copy trained weights into a model; return one line that says what was resized and what stays the model's own.

    Patch embedding and positions are resized where patches or images have another size. The head stays the model's own
    where the classes differ in number or, if both are known, in name. So do positions that are not learned.

    >>> model = VisionTransformer(image_size=96, patch_size=8, embed_dim=128, depth=6, num_heads=4, mlp_ratio=2)
    >>> start_from(model, "cifar10")
    'weights of cifar10, resized: patch_embed.proj.weight, pos_embed'

    Args:
        model: The model whose weights are replaced.
        path: A file, or a name, that ``vit.load`` takes.
        class_names: Names of the model's classes, in the order of the logits; None if they have none.

    Raises:
        ValueError: If the file holds no model, or one of another architecture.
    """
    source = load(path)
    _check_alike(source, model, path)
    state, own, resized, fresh = source.state_dict(), model.state_dict(), [], []
    if source.patch_embed.patch_size != model.patch_embed.patch_size:
        weight = state["patch_embed.proj.weight"]
        state["patch_embed.proj.weight"] = resize_patches(weight, model.patch_embed.patch_size)
        resized.append("patch_embed.proj.weight")
    if not model.pos_embed.requires_grad:
        state["pos_embed"] = own["pos_embed"]
        fresh.append("pos_embed")
    elif source.patch_embed.grid_size != model.patch_embed.grid_size:
        grids = source.patch_embed.grid_size, model.patch_embed.grid_size
        state["pos_embed"] = resize_positions(state["pos_embed"], *grids)
        resized.append("pos_embed")
    if not _same_head(source, model, class_names):
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        state |= {name: tensor for name, tensor in own.items() if name.startswith("head.")}
        fresh += [name for name in own if name.startswith("head.")]
    of_grid = f", and the same grid to attention {model.config['attention']!r}" * (model.config["attention"] in OF_GRID)
    check_same_tensors(model, state, path, f"give the model the same pool and fc_norm{of_grid}")
    model.load_state_dict(state)
    changes = [("resized", resized), ("not taken", fresh)]
    return ", ".join([f"weights of {path}", *(f"{kind}: {', '.join(names)}" for kind, names in changes if names)])


def _check_alike(source: VisionTransformer, model: VisionTransformer, path: str | Path) -> None:
    """Check that two models differ in nothing that the weights depend on, such as the number of heads."""
    theirs, ours = source.config, model.config
    differing = [name for name in ours if name not in FREE and theirs[name] != ours[name]]
    if differing:
        there, here = ({name: values[name] for name in differing} for values in (theirs, ours))
        raise ValueError(
            f"{path} holds a model with {_listed(there)}, and this one has {_listed(here)}: make them equal"
        )


def _listed(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in values.items())


def _same_head(source: VisionTransformer, model: VisionTransformer, class_names: Sequence[str] | None) -> bool:
    theirs = source.pretrained_cfg["class_names"]
    are_named_alike = not theirs or not class_names or list(theirs) == list(class_names)
    return are_named_alike and (source.num_classes, source.num_features) == (model.num_classes, model.num_features)


def resize_patches(weight: Tensor, size: Size) -> Tensor:
    """Resize the patch embedding to patches of another size: (D, C, P, Q) -> (D, C, M, N).

    The new weights ``v`` embed a patch that is resized by the matrix ``R`` as the old weights ``w`` embed the patch
    itself, ``<v, R x> = <w, x>``, as well as possible: ``v = pinv(R^T) w`` (FlexiViT, Beyer et al. 2023, eq. 4). The
    resizing is bicubic and antialiased, as in timm.
    """
    p, q = weight.shape[-2:]
    m, n = to_pair(size)
    pixels = rearrange(torch.eye(p * q, dtype=torch.float64), "x (p q) -> x 1 p q", p=p)
    # Row x is R applied to the patch in which only pixel x is one.
    resizing = F.interpolate(pixels, size=(m, n), mode="bicubic", antialias=True, align_corners=False)
    inverse = torch.linalg.pinv(rearrange(resizing, "x 1 m n -> x (m n)")).to(weight.device)
    flat = rearrange(weight.double(), "d c p q -> d c (p q)")
    resized = einsum(inverse, flat, "y x, d c x -> d c y")
    return rearrange(resized, "d c (m n) -> d c m n", m=m).to(weight.dtype)
