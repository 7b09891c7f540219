"""The files of DINOv2's authors: timm's names, except for the gated MLP, the registers and the mask token."""

import re

import torch

from vit.weights.formats.format import IMAGENET, Format, Rule, State, rename_in_blocks
from vit.weights.formats.timm import RULES


def fold_class_position(state: State) -> State:
    """Leave out the mask token; with registers, add the class token's position to the token, as ours has none.

    Raises:
        ValueError: If the mask token is that of a model of this package, whose tensors have the same names.
    """
    if state["mask_token"].ndim != 2:
        raise ValueError(
            f"mask_token has shape {tuple(state['mask_token'].shape)}, as in models of this package, and tensors alone "
            "do not tell their arguments: save the model by vit.save, or build it and call load_state_dict"
        )
    state = {name: tensor for name, tensor in state.items() if name != "mask_token"}
    if "reg_token" not in state:
        return state
    of_class, of_patches = state["pos_embed"].split([1, state["pos_embed"].shape[1] - 1], dim=1)
    return state | {"cls_token": state["cls_token"] + of_class, "pos_embed": of_patches.clone()}


def unfold_class_position(state: State) -> State:
    """Give the class token the position zero, and add the mask token that these files have."""
    state = state | {"mask_token": state["cls_token"].new_zeros(1, state["cls_token"].shape[-1])}
    if "reg_token" not in state:
        return state
    return state | {"pos_embed": torch.cat([torch.zeros_like(state["cls_token"]), state["pos_embed"]], dim=1)}


def _drop_chunks(state: State) -> State:
    """Drop the chunk from names of blocks: files of a sharded training have blocks.CHUNK.NUMBER."""
    renamed = {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): tensor for name, tensor in state.items()}
    if len(renamed) < len(state):
        raise ValueError("blocks of several chunks have the same number: give the tensors of one model")
    return renamed


DINOV2 = Format(
    "DINOv2",
    (
        Rule("reg_token", ("register_tokens",)),
        *RULES,
        *rename_in_blocks("blocks.{i}", {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}),
        Rule("mask_token", ("mask_token",)),
    ),
    needs=("patch_embed.proj.weight", "mask_token", "pos_embed"),
    lacks=("decoder_pos_embed",),
    before_reading=_drop_chunks,
    after_reading=fold_class_position,
    before_writing=unfold_class_position,
    read_from_tensors=lambda state: {"pos_embed_interpolation": "bicubic" if "register_tokens" in state else "dinov2"},
    data=IMAGENET,
)
