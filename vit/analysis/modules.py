"""The attention modules of a model, layer by layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadAttention


class NoHeads(nn.Module):
    """An attention pruned of all heads: its output is the bias of its output projection, the same for every token."""

    num_heads = 0

    def __init__(self, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.proj = nn.ParameterDict({} if bias is None else {"bias": bias})

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the bias for each token: (B, N, C) -> (B, N, C)."""
        return self.proj["bias"].to(x.dtype).expand_as(x) if "bias" in self.proj else torch.zeros_like(x)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return the attention of each layer, first layer first: ours, timm's or torch's ``nn.MultiheadAttention``.

    Raises:
        ValueError: If the model has none of these.
    """
    found = [module for module in model.modules() if _is_attention(module)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention with qkv and proj (as here and in timm) or in_proj_weight and "
            "out_proj (as in torchvision), so its heads cannot be separated: use describe_heads to measure them"
        )
    return found


def emptied_layers(model: nn.Module) -> list[int]:
    """Return the numbers of the layers pruned of all heads, of which no attention can be captured."""
    found = filter(_is_attention, model.modules())
    return [layer for layer, module in enumerate(found) if isinstance(module, NoHeads)]


def with_emptied_layers(model: nn.Module, captured: Sequence[Tensor]) -> list[Tensor]:
    """Add an empty tensor (0,) for each layer pruned of all heads to those (H,) of the other layers."""
    layers = list(captured)
    for emptied in emptied_layers(model):
        layers.insert(emptied, torch.empty(0))
    return layers


def _is_attention(module: nn.Module) -> bool:
    # Recognised by the joint projection: timm has many classes, and that of its pooling attention is no layer.
    joint = hasattr(module, "num_heads") and isinstance(getattr(module, "qkv", None), nn.Linear)
    return joint or isinstance(module, MultiHeadAttention | nn.MultiheadAttention | NoHeads)
