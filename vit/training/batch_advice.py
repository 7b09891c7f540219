"""The line about the memory of the first step: which batches would fit, and the learning rate to begin with."""

import os
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.training.sharding import own_part

FILLED = 0.9  # share of the memory that larger batches may fill
MUCH = 0.5  # share of a computer's memory that a training may fill, as other programs need some, too


def measure_memory(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> tuple[int, int, int]:
    """Return the bytes of a step's activations, of what stays between steps, and of the memory of the device.

    Call it after the first step. The activations are the peak of that step minus the weights and the images on the
    device; gradients count among them. On a CPU the first number counts everything, and what stays is 0.
    """
    if device.type == "cuda":
        made = [each.grad for each in model.parameters() if each.grad is not None]
        made += [each for optimizer in optimizers for state in optimizer.state.values() for each in state.values()]
        stays, total = torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
        before = stays - sum(own_part(each).nbytes for each in made if isinstance(each, Tensor))
        return max(0, torch.cuda.max_memory_allocated(device) - before), stays, total
    import resource  # which Windows does not have

    unit = 1 if sys.platform == "darwin" else 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return used, 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def advise_batch(
    activations: int, stays: int, total: int, *, batch_size: int, most: int, lr: float, has_own_memory: bool
) -> str | None:
    """Return a line about the batches that would fit; None if there is nothing to say.

    Activations grow with the batch. The learning rate of AdamW and Muon then grows by the square root of the factor, or
    by the factor itself, the rule for SGD (Goyal et al. 2017). Both are starting points, not results.

    >>> advise_batch(
    ...     3 * 10**9, 10**8, 80 * 10**9, batch_size=128, most=50_000, lr=1e-3, has_own_memory=True
    ... )  # doctest: +NORMALIZE_WHITESPACE
    'memory: 3.1 of 80.0 GB with batches of 128: --data.batch_size 2048 would fit; then begin with --model.lr 0.004 (by
    the square root, usual for AdamW and Muon) to 0.016 (linear, the rule for SGD)'

    Args:
        activations: Bytes that grow with the batch.
        stays: Bytes of weights and averages.
        total: Bytes of the memory.
        batch_size: Images per step and device.
        most: Training images for each device.
        lr: The learning rate.
        has_own_memory: Whether the memory is that of a GPU. For a computer's memory, only too much use is reported.
    """
    used = f"memory: {(activations + stays) / 1e9:.1f} of {total / 1e9:.1f} GB with batches of {batch_size:,}"
    if not has_own_memory:
        if activations + stays <= MUCH * total or batch_size < 2:
            return None
        return (
            f"{used}, more than half: --data.batch_size {batch_size // 2} takes less; then begin with --model.lr "
            f"{lr * 0.5**0.5:.2g} (by the square root, usual for AdamW and Muon) to {lr / 2:.2g} (linear)"
        )
    factor = 1
    while 2 * factor * activations + stays <= FILLED * total and 2 * factor * batch_size <= most:
        factor *= 2
    if factor == 1:
        return None
    return (
        f"{used}: --data.batch_size {factor * batch_size} would fit; then begin with --model.lr {lr * factor**0.5:.2g} "
        f"(by the square root, usual for AdamW and Muon) to {lr * factor:.2g} (linear, the rule for SGD)"
    )
