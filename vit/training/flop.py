"""How many floating-point operations training takes."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vit.model import VisionTransformer


def training_flop(model: VisionTransformer) -> int:
    """Floating-point operations of a training step per image, in the matrix products of the model as it is now.

    Counted while one image passes, and three times that, since the backward pass takes twice as many products. A
    multiplication and an addition are two. What ``patch_drop`` leaves out in training mode is not counted.

    >>> model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=1, pool="mean")
    >>> embedding, head = 4 * 48 * 12, 12 * 10
    >>> block = 5 * 12 * 12 * (4 + 8) + 2 * 5 * 5 * 12
    >>> training_flop(model) == 3 * 2 * (embedding + block + head)
    True
    """
    return 3 * forward_flop(model, _image(model))


def forward_flop(network: nn.Module, images: Tensor) -> int:
    """Floating-point operations of a network's forward pass, in its matrix products and convolutions."""
    devices = [images.device] if images.is_cuda else []
    # Compiled blocks hide their products, and a random choice must not be missing from the run's.
    with torch.random.fork_rng(devices=devices), torch.compiler.set_stance("force_eager"), torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            network(images)
        return counter.get_total_flops()


def _image(model: VisionTransformer) -> Tensor:
    embedding, positions = model.patch_embed, model.pos_embed
    return torch.zeros(1, embedding.in_channels, *embedding.image_size, device=positions.device, dtype=positions.dtype)
