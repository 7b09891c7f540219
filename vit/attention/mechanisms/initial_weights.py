"""Initial weights of linear layers, norms and parameters, also of sharded ones."""

import torch
from torch import Tensor, nn


def draw_weights(module: nn.Module) -> None:
    """Draw the weights of all linear layers, uniform (Glorot and Bengio 2010); norms start as the identity.

    A submodule with ``init_weights`` draws its own weights.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.reset_parameters()
    for child in module.children():
        if hasattr(child, "init_weights"):
            child.init_weights()
        else:
            draw_weights(child)


@torch.no_grad()
def set_values(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a parameter or a buffer; if it is sharded, each process takes its part."""
    if hasattr(tensor, "placements"):
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements)
    tensor.copy_(values)
