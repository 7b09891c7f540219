"""Pruning: heads are removed from the weights of a model and from its computation.

Letters in the einops patterns: h heads, d channels of a head, c channels of a token.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy

import torch
from einops import rearrange
from torch import nn

from vit.analysis.modules import NoHeads, attention_modules, head_count, is_of_transformers
from vit.analysis.projections import head_projections
from vit.attention import MultiHeadAttention
from vit.attention.mechanisms import MECHANISMS
from vit.support.hooks import is_plain

# Mechanisms with independent heads and without weights of their own.
NAMES = ("softmax", "chunked", "window", "neighborhood", "sparse", "topk", "uniform")
SEPARATE = tuple(MECHANISMS[name] for name in NAMES)


def prune_heads(model: nn.Module, heads: Mapping[int, Iterable[int]]) -> nn.Module:
    """Return a copy of a model without these heads. Its output equals that of the model with their attention at zero.

    The heads' rows of ``qkv`` and columns of ``proj`` are cut out, so the model is smaller and faster. A layer without
    heads keeps the bias of its output projection (``NoHeads``), and ``capture_attention`` skips it. A pruned model can
    be pruned again: heads left are numbered from 0, layers as before. To save it, keep ``heads`` and its
    ``state_dict()``. To load it, prune ``heads`` from a model of full size, and then load the ``state_dict()``.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> pruned = prune_heads(model, {0: [2], 1: [0, 1]})
    >>> [block.attn.num_heads for block in pruned.blocks]
    [2, 1]

    Args:
        model: A ``vit.VisionTransformer``, a ViT of timm with its plain ``Attention``, or one of transformers 5.
        heads: For each layer, counted from 0, the numbers of the heads to remove: a list, array or tensor.

    Raises:
        ValueError: If a head does not exist, heads of this attention cannot be separated, or layers share it.
    """
    pruned = deepcopy(model)
    modules = attention_modules(pruned)
    every = [module for _, module in pruned.named_modules(remove_duplicate=False)]
    if any(sum(each is module for each in every) > 1 for module in modules):
        raise ValueError("several layers share one attention, so no layer can be pruned alone: give each its own")
    for layer, doomed in heads.items():
        if isinstance(doomed, int):
            raise ValueError(f"the heads of layer {layer} ({doomed}) must be a list: give {{{layer}: [{doomed}]}}")
        doomed = {int(head) for head in doomed}
        if not 0 <= layer < len(modules):
            raise ValueError(f"there is no layer {layer}: layers are 0 to {len(modules) - 1}")
        attention = modules[layer]
        count = head_count(attention)
        unknown = sorted(doomed - set(range(count)))
        if unknown:
            raise ValueError(f"layer {layer} has {count} heads, counted from 0: there is no head {unknown[0]}")
        if not doomed:
            continue
        check_separate(attention)
        left = [head for head in range(count) if head not in doomed]
        if left:
            _keep(attention, left)
        else:
            name = "o_proj" if is_of_transformers(attention) else "proj"
            _replace(pruned, attention, NoHeads(getattr(attention, name).bias, name))
    return pruned


def check_separate(attention: nn.Module) -> None:
    """Raise a ValueError if removing a head of this attention would change its other heads."""
    if isinstance(attention, MultiHeadAttention):
        name = type(attention.mechanism).__name__
        if not isinstance(attention.mechanism, SEPARATE):
            known = ", ".join(mechanism.__name__ for mechanism in SEPARATE)
            raise ValueError(
                f"heads of {name} cannot be pruned, as they interact or have weights besides qkv and proj: "
                f"give a model with {known}"
            )
        tied = attention.tie_qkv or attention.tie_kv
        if tied or attention.num_kv_heads != attention.num_heads or not hasattr(attention, "qkv"):
            raise ValueError(
                f"heads that share projections cannot be pruned (num_heads {attention.num_heads}, num_kv_heads "
                f"{attention.num_kv_heads}, tie_qkv {attention.tie_qkv}, tie_kv {attention.tie_kv}): give each head "
                "queries, keys and values"
            )
        if not (is_plain(attention.qkv, nn.Linear) and is_plain(attention.proj, nn.Linear)):
            raise ValueError(
                f"qkv ({type(attention.qkv).__name__}) or proj ({type(attention.proj).__name__}) is no plain "
                "linear layer: merge adapters first (merge_and_unload), and remove parametrisations"
            )
        return
    if is_of_transformers(attention):
        head_projections(attention)
        return
    own = {name.split(".")[0] for name, _ in attention.named_parameters()}
    others = sorted(own - {"qkv", "proj", "q_norm", "k_norm"})
    if type(attention).__name__ != "Attention" or not hasattr(attention, "attn_dim") or others:
        raise ValueError(
            f"heads of {type(attention).__module__}.{type(attention).__name__} cannot be pruned (weights besides qkv "
            f"and proj: {', '.join(others) or 'none'}): give a vit.VisionTransformer, timm's with its Attention, or "
            "one of transformers 5"
        )


@torch.no_grad()
def _keep(attention: nn.Module, left: list[int]) -> None:
    """Cut an attention down to the heads ``left``, in place."""
    before, now = head_count(attention), len(left)
    if is_of_transformers(attention):
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            _keep_rows(projection, [len(projection.weight)], before, left)
        _keep_columns(attention.o_proj, before, left)
        attention.num_attention_heads = now
        return
    ours = isinstance(attention, MultiHeadAttention)
    widths = attention.split_dims if ours else [attention.attn_dim] * 3
    _keep_rows(attention.qkv, widths, before, left)
    _keep_columns(attention.proj, before, left)
    attention.num_heads = now
    if ours:
        attention.num_kv_heads = now
        attention.split_dims = [width // before * now for width in widths]
        attention.key_dim, _, attention.value_dim = attention.split_dims
    else:
        attention.attn_dim = now * attention.head_dim


def _keep_rows(projection: nn.Linear, widths: list[int], heads: int, left: list[int]) -> None:
    """Keep the rows of a projection that compute these heads. Its parts (q, k, v) have these widths."""
    for name in ("weight", "bias"):
        joint = getattr(projection, name)
        if joint is not None:
            parts = [rearrange(part, "(h d) ... -> h d ...", h=heads)[left] for part in joint.split(widths)]
            rows = torch.cat([rearrange(part, "h d ... -> (h d) ...") for part in parts])
            setattr(projection, name, nn.Parameter(rows, joint.requires_grad))
    projection.out_features = len(projection.weight)


def _keep_columns(projection: nn.Linear, heads: int, left: list[int]) -> None:
    """Keep the columns of a projection that read these heads."""
    columns = rearrange(projection.weight, "c (h d) -> h c d", h=heads)[left]
    projection.weight = nn.Parameter(rearrange(columns, "h c d -> c (h d)"), projection.weight.requires_grad)
    projection.in_features = projection.weight.shape[1]


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    path = next(name for name, module in model.named_modules() if module is old)
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new.train(old.training))
