"""The attention modules of a model, layer by layer."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from vit.analysis.batches import in_batches
from vit.attention import MultiHeadAttention

# Names of the projections of attention whose heads cannot be separated here.
OTHER_PARTS = (("q_proj", "k_proj", "v_proj"), ("q", "k", "v"), ("q", "kv"), ("qk", "v"))


class NoHeads(nn.Module):
    """Replaces an attention that lost all heads. Its output is the bias of the output projection for every token.

    Args:
        bias: The bias of the output projection. None means zeros.
        name: Name of the output projection in the replaced attention, so that the bias keeps its name.
    """

    num_heads = 0

    def __init__(self, bias: nn.Parameter | None, name: str = "proj") -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.ParameterDict({} if bias is None else {"bias": bias}))

    def forward(self, x: Tensor, context: Tensor | None = None, *_: Any, cache: Any = None, **__: Any) -> Any:
        """Return the bias for each token: (B, N, C) -> (B, N, C). For transformers, return (output, None).

        A cache of a decoder counts the tokens, as their places follow from it.
        """
        if cache is not None and context is None:
            cache.length += x.shape[1]
        kept = self.get_submodule(self.name)
        output = kept["bias"].to(x.dtype).expand_as(x) if "bias" in kept else torch.zeros_like(x)
        return (output, None) if self.name == "o_proj" else output


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return the attention of each layer, in order: ours, timm's, transformers' or ``nn.MultiheadAttention``.

    Raises:
        ValueError: If the model has no such attention, or other attention beside it.
    """
    found = [module for module in model.modules() if _is_attention(module)]
    others = [module for module in model.modules() if _is_other_attention(module)]
    if found and others:
        raise ValueError(
            f"{type(model).__name__} has attention of {len(others)} {type(others[0]).__name__} beside {len(found)} "
            f"{type(found[0]).__name__}, and the heads of the former cannot be separated: use describe_heads to "
            "measure them"
        )
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention with qkv and proj (as here and in timm) or in_proj_weight and "
            "out_proj (as in torchvision), so its heads cannot be separated: use describe_heads to measure them"
        )
    return found


def head_count(attention: nn.Module) -> int:
    """Return the number of heads of an attention. In transformers, the attribute has another name."""
    return attention.num_attention_heads if is_of_transformers(attention) else attention.num_heads


def output_projection(attention: nn.Module) -> nn.Module | None:
    """Return the module that projects the joined heads, or None if the attention does not call it as a module."""
    if isinstance(attention, nn.MultiheadAttention):
        return None
    return attention.o_proj if is_of_transformers(attention) else attention.proj


def is_of_transformers(attention: nn.Module) -> bool:
    """Return whether an attention has the parts of ViT, DeiT and DINOv2 in transformers 5."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return hasattr(attention, "num_attention_heads") and all(
        isinstance(getattr(attention, name, None), nn.Linear) for name in names
    )


def emptied_layers(model: nn.Module) -> list[int]:
    """Return the numbers of the layers that lost all heads. Their attention cannot be captured."""
    found = filter(_is_attention, model.modules())
    return [layer for layer, module in enumerate(found) if isinstance(module, NoHeads)]


def with_emptied_layers(model: nn.Module, captured: Sequence[Tensor]) -> list[Tensor]:
    """Insert an empty tensor (0,) for each layer that lost all heads into the (H,) tensors of the other layers."""
    layers = list(captured)
    for emptied in emptied_layers(model):
        layers.insert(emptied, torch.empty(0))
    return layers


@torch.no_grad()
def check_same_layers(model: nn.Module, images: Tensor, counts: Sequence[int]) -> None:
    """Check that layers of as many heads as ``counts`` says are the attention modules of a model, in the same order.

    Raises:
        ValueError: If modules run in another order, not once each, or one of them has no influence on the logits.
    """
    modules, called = attention_modules(model), []
    with ExitStack() as hooks:
        for number, module in enumerate(modules):
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, number=number: called.append(number)))
        model(next(in_batches(model, images, 1)))
    of_modules = [head_count(module) for module in modules]
    if called != [*range(len(modules))] or [*counts] != of_modules:
        raise ValueError(
            f"the layers of {type(model).__name__} that its logits depend on have {[*counts]} heads, its attention "
            f"modules {of_modules}, which run in the order {called}: heads can be ranked by 'weight' and 'random' alone"
        )


def _is_attention(module: nn.Module) -> bool:
    # The joint projection identifies timm's many classes. Its pooling attention has none, and is no layer.
    joint = hasattr(module, "num_heads") and isinstance(getattr(module, "qkv", None), nn.Linear)
    known = isinstance(module, MultiHeadAttention | nn.MultiheadAttention | NoHeads)
    return joint or known or is_of_transformers(module)


def _is_other_attention(module: nn.Module) -> bool:
    """Return whether a module is an attention of other parts, as in SigLIP and CLIP of transformers, ConViT and Twins.

    Attention that pools the tokens has a latent query, and is no layer.
    """
    if _is_attention(module) or hasattr(module, "latent"):
        return False
    linear = {name for name, part in module.named_children() if isinstance(part, nn.Linear)}
    return any(linear.issuperset(parts) for parts in OTHER_PARTS)
