"""Parameter groups with their learning rate and weight decay, and the optimiser over them."""

from typing import Any, Literal

import torch
from torch import nn

from vit.attention import MultiHeadAttention
from vit.training.muon import MuonAdamW

Optimizer = Literal["adamw", "muon"]


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, layer_decay: float | None = None, muon: bool = False
) -> list[dict[str, Any]]:
    """Return the parameters in groups of one learning rate and one weight decay each.

    Parameters that are not matrices (biases, norms, LayerScale) and those of ``model.no_weight_decay()`` (class token,
    registers, positions, parameters of mechanisms) have no weight decay. With ``layer_decay`` the learning rate of
    block i of L is ``lr * layer_decay ** (L - i)``, with i = -1 for the embedding and ``lr`` for the head (BEiT, Bao et
    al. 2022). Each group holds its rate as ``lr``, so that any scheduler keeps the ratios. Frozen parameters are in no
    group. The groups do not depend on the values of the rate and the decay, which a resumed training may change.

    Args:
        model: A VisionTransformer or, without ``layer_decay``, a decoder or a model of both.
        lr: Learning rate of the head, and of all parameters if ``layer_decay`` is None.
        weight_decay: Weight decay of the matrices.
        layer_decay: Factor of the learning rate from one layer to the layer before it, such as 0.75.
        muon: Whether the groups are for ``MuonAdamW``, with the matrices of the blocks in Muon groups.
    """
    undecayed = model.no_weight_decay()
    depth = 0 if layer_decay is None else len(model.blocks)
    stacked = _matrices_of_blocks(model) if muon else {}
    groups: dict[tuple[float, bool, int], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_decayed = parameter.ndim > 1 and name not in undecayed
        decay = weight_decay if is_decayed else 0.0
        rate = lr if layer_decay is None else lr * layer_decay ** (depth - _layer(name, depth))
        matrices = stacked.get(name, 0)
        group = groups.setdefault((rate, is_decayed, matrices), {"params": [], "lr": rate, "weight_decay": decay})
        if muon:
            group |= {"muon": matrices > 0, "stacked": matrices}
        group["params"].append(parameter)
    return list(groups.values())


def _layer(name: str, depth: int) -> int:
    if name.startswith("blocks."):
        return int(name.split(".")[1])
    if name.startswith("norm."):
        return depth - 1  # with the last block, as in timm
    return depth if name.startswith(("fc_norm.", "attn_pool.", "head.")) else -1


def _matrices_of_blocks(model: nn.Module) -> dict[str, int]:
    """Return the number of matrices in each weight of a linear layer inside the blocks, by its name.

    There are 3 in ``qkv``, and 2 in the ``kv`` of attention to a context of another width.
    """
    stacked = {}
    for name, module in model.named_modules():
        if "blocks" not in name.split("."):
            continue
        if isinstance(module, nn.Linear):
            stacked.setdefault(f"{name}.weight", 1)
        if isinstance(module, MultiHeadAttention) and module.mechanism.projected and not module.tie_qkv:
            for fused, parts in (("qkv", module.split_dims), ("kv", module.split_dims[1:])):
                # Parts of different heights, as with few key-value heads, count as one matrix.
                if hasattr(module, fused):
                    stacked[f"{name}.{fused}.weight"] = len(parts) if len(set(parts)) == 1 else 1
    return stacked


def make_optimizer(
    name: Optimizer,
    model: nn.Module,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    layer_decay: float | None = None,
) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019) over all parameters, or Muon for the matrices of the blocks.

    AdamW is fused, which is faster: benchmarks/results/training_parts.md.

    Raises:
        ValueError: If ``name`` is not the name of an optimiser.
    """
    if name == "muon":
        return MuonAdamW(parameter_groups(model, lr, weight_decay, layer_decay, muon=True), lr=lr, betas=betas)
    if name != "adamw":
        raise ValueError(f"unknown optimizer {name!r}: choose 'adamw' or 'muon'")
    optimizer = torch.optim.AdamW(parameter_groups(model, lr, weight_decay, layer_decay), betas=betas, fused=True)
    # Lightning does not clip the gradients of optimisers that unscale them, as fused ones can for float16. In float32
    # and bfloat16 nothing is scaled, and in float16 the scaler now unscales the gradients before they are clipped.
    optimizer._step_supports_amp_scaling = False
    return optimizer
