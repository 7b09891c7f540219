"""Which modules of a model are the attention of its layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadAttention


class NoHeads(nn.Module):
    """What is left of an attention without heads: the bias of its output projection, the same for every token.

    Args:
        bias: The bias (C,) of the projection; None if it has none.
    """

    num_heads = 0

    def __init__(self, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.proj = nn.ParameterDict({} if bias is None else {"bias": bias})

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """The bias for each token: (B, N, C) -> (B, N, C)."""
        return self.proj["bias"].to(x.dtype).expand_as(x) if "bias" in self.proj else torch.zeros_like(x)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention of each layer, in the order of the layers: ours, timm's or torch's ``nn.MultiheadAttention``.

    Raises:
        ValueError: If there is none.
    """
    found = [module for module in model.modules() if _is_attention(module)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention with qkv and proj (as here and in timm) or in_proj_weight and "
            "out_proj (as in torchvision): its heads cannot be taken apart; measure their attention by describe_heads"
        )
    return found


def emptied_layers(model: nn.Module) -> list[int]:
    """Numbers of the layers that were pruned of all heads; nobody sees attention of these."""
    found = filter(_is_attention, model.modules())
    return [layer for layer, module in enumerate(found) if isinstance(module, NoHeads)]


def with_emptied_layers(model: nn.Module, seen: Sequence[Tensor]) -> list[Tensor]:
    """One (H,) for each layer that has heads -> one for each layer, (0,) where all heads were taken out."""
    layers = list(seen)
    for emptied in emptied_layers(model):
        layers.insert(emptied, torch.empty(0))
    return layers


def _is_attention(module: nn.Module) -> bool:
    # By its joint projection, as timm has many classes, one of which pools and is no layer.
    other = hasattr(module, "num_heads") and isinstance(getattr(module, "qkv", None), nn.Linear)
    return other or isinstance(module, MultiHeadAttention | nn.MultiheadAttention | NoHeads)
