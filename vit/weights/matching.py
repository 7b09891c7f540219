"""Compares the tensors of a file with those of a model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

SHOWN_DIFFERENCES = 4
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_same_tensors(model: nn.Module, state: Mapping[str, Tensor], origin: str | Path, remedy: str) -> None:
    """Check that tensors have the names and shapes of those of a model.

    Raises:
        ValueError: If they differ. The message names the ``origin``, the first differences, and the ``remedy``.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    differences = [f"{name} is missing" for name in expected.keys() - found.keys()]
    differences += [f"{name} is unknown" for name in found.keys() - expected.keys()]
    differences += [
        f"{name} is {found[name]} and not {expected[name]}"
        for name in expected.keys() & found.keys()
        if found[name] != expected[name]
    ]
    if differences:
        shown = "; ".join(sorted(differences)[:SHOWN_DIFFERENCES])
        rest = len(differences) - SHOWN_DIFFERENCES
        raise ValueError(
            f"{origin} comes from another architecture, {len(differences)} tensors differ: {shown}"
            f"{f'; and {rest} more' if rest > 0 else ''}: {remedy}"
        )


def check_numbers(state: Mapping[str, Tensor], origin: str | Path) -> None:
    """Check that all numbers are real and finite; the error names the ``origin`` and the first tensor with others."""
    for name, tensor in state.items():
        if tensor.dtype not in PRECISIONS:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in PRECISIONS)
            raise ValueError(f"{origin}: {name} is {str(tensor.dtype).removeprefix('torch.')}: convert it to {known}")
        if not tensor.isfinite().all():
            wrong = tensor.numel() - tensor.isfinite().sum().item()
            raise ValueError(
                f"{origin} is of no use: {wrong} of the {tensor.numel()} numbers of {name} are NaN or infinite; "
                "take a checkpoint from before the training diverged"
            )
