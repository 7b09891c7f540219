"""Attention flow: the largest flow from an output token down to each input token (Abnar and Zuidema 2020).

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.explain.maps.rollout import check_attentions, check_rollout, fuse_heads, with_residual
from vit.support.extras import import_extra

UNITS = 2**24  # units of flow in a capacity of 1, because SciPy needs whole numbers


def attention_flow(attentions: Sequence[Tensor], token: int = 0, residual: float = 0.5) -> Tensor:
    """Compute the largest flow from an output token to each input token: a list of (B, H, N, N) -> (B, N).

    Pipes join all tokens of adjacent layers. Their capacities are ``(1 - residual) * mean of the heads + residual *
    I``, each row divided by its sum (Abnar and Zuidema 2020, sec. 3.2). Rollout multiplies the weights along a path;
    here, the narrowest pipe limits the path. A negative weight counts as zero, as in rollout. Capacities are rounded to
    2^-24. Each image needs one maximum flow per token: seconds for 65 tokens, most of a minute for 197.

    >>> attn = torch.tensor([[[[0.25, 0.75], [0.5, 0.5]]]])
    >>> attention_flow([attn, attn], residual=0.0)  # 0 -> 0 -> 0 lets 0.25 through, and 0 -> 1 -> 0 lets 0.5
    tensor([[0.7500, 0.7500]])

    Args:
        attentions: Attention of each layer, first layer first.
        token: The output token: 0 is the class token.
        residual: Weight of the skip connection, from 0 to 1.

    Raises:
        ValueError: If there is no such token, the attention of a layer has one query, an argument is out of range, or
            SciPy is not installed.
    """
    check_rollout("mean", 0.0, residual)
    check_attentions(attentions)
    num_tokens = attentions[0].shape[-1]
    if not 0 <= token < num_tokens:
        raise ValueError(f"token ({token}) must be one of {num_tokens} tokens, from 0 to {num_tokens - 1}")
    if any(attn.shape[-2] != num_tokens for attn in attentions):
        raise ValueError("an attention with one query, as of attention pooling, has no flow: leave it out of the list")
    pipes = [with_residual(fuse_heads(attn), residual) for attn in attentions]
    # Last layer first: the flow runs from the output down to the input.
    of_images = torch.stack(pipes[::-1], dim=1).cpu().double()
    flows = [_flows_to_inputs(layers, token) for layers in of_images]
    return torch.tensor(flows, dtype=attentions[0].dtype, device=attentions[0].device)


def _flows_to_inputs(layers: Tensor, token: int) -> list[float]:
    """Return the largest flow to each input token through layers (L, N, N), last layer first."""
    sparse = import_extra("scipy.sparse", "explain")
    maximum_flow = import_extra("scipy.sparse.csgraph", "explain").maximum_flow
    depth, num_tokens, _ = layers.shape
    layer, query, key = torch.meshgrid(*(torch.arange(size) for size in layers.shape), indexing="ij")
    source, sink = (layer * num_tokens + query).flatten(), ((layer + 1) * num_tokens + key).flatten()
    capacities = (UNITS * layers).round().int().flatten()
    size = (depth + 1) * num_tokens
    graph = sparse.csr_array((capacities.numpy(), (source.int().numpy(), sink.int().numpy())), shape=(size, size))
    inputs = range(depth * num_tokens, size)
    return [maximum_flow(graph, token, reached).flow_value / UNITS for reached in inputs]
