"""Counts the floating-point operations of training."""

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vit.model.vision_transformer import VisionTransformer


def training_flop(model: VisionTransformer) -> int:
    """Return the floating-point operations of a training step per image, in the matrix products of the model.

    The forward pass of one image is counted, and the backward pass as twice that. A multiplication and an addition are
    two operations. Patches that ``patch_drop`` drops in training mode do not count. Frozen blocks count as if they were
    trained.

    >>> model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=1, pool="mean")
    >>> embedding, head = 4 * 48 * 12, 12 * 10
    >>> block = 5 * 12 * 12 * (4 + 8) + 2 * 5 * 5 * 12
    >>> training_flop(model) == 3 * 2 * (embedding + block + head)
    True
    """
    embedding, positions = model.patch_embed, model.pos_embed
    shape = (1, embedding.in_channels, *embedding.image_size)
    return 3 * forward_flop(model, torch.zeros(shape, device=positions.device, dtype=positions.dtype))


def forward_flop(network: nn.Module, *inputs: Tensor) -> int:
    """Return the floating-point operations of a forward pass, in its matrix products and convolutions."""
    devices = [inputs[0].device] if inputs[0].is_cuda else []
    # Eager and unfused, because compiled blocks hide their products, as fused attention on the CPU does before torch
    # 2.15; forked, so that the run's random draws stay the same.
    with torch.random.fork_rng(devices=devices), torch.compiler.set_stance("force_eager"), torch.no_grad():
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            network(*inputs)
        return counter.get_total_flops()
