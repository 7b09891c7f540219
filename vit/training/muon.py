"""The Muon optimiser: the update of a weight matrix is its orthogonalised momentum.

Letters in the einops patterns: l parameters of one shape, s matrices stacked in a parameter, a b rows and columns.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

# The coefficients of Jordan et al. 2024, which bring singular values into 0.7 to 1.2 in few steps.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for the groups with ``"muon": True``, AdamW for the others.

    Muon replaces the momentum M = U S V^T of a weight matrix (a rows, b columns) by about U V^T, so that rare
    directions are learned as fast as common ones, and scales it by ``0.2 * sqrt(max(a, b))``: its entries are then as
    large as AdamW's updates, and one learning rate suits both (Liu et al. 2025). Matrices of one shape are
    orthogonalised together: on a GPU, launching the kernels for each would take longer than the products.

    The row "AdamW instead of Muon" of benchmarks/results/ablation.md has the accuracy of configs/cifar10_quick.yaml
    with AdamW at the same learning rate.

    Args:
        groups: Groups of parameters, each with "muon"; if it is true, also with "stacked", the number of matrices that
            a parameter holds one above the other, such as 3 for ``qkv``.
        lr: Learning rate of groups without one.
        weight_decay: Decoupled weight decay of groups without one.
        momentum: Weight of the past in Muon's Nesterov momentum.
        betas: Decay of AdamW's averages of the gradient and of its square.

    Raises:
        ValueError: If a parameter of a Muon group is not a matrix.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas})
        for parameter in (p for group in self._muon_groups() for p in group["params"]):
            if parameter.ndim != 2:
                raise ValueError(f"Muon is for matrices, not for a parameter of shape {tuple(parameter.shape)}")
        others = [group for group in self.param_groups if not group["muon"]] or [{"params": []}]
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # AdamW shares our groups and state, as schedules and checkpoints need one optimiser.
        self.adamw.param_groups = [group for group in self.param_groups if not group["muon"]]
        self.adamw.state = self.state
        self.adamw.step()
        for group in self._muon_groups():
            for parameters in _by_shape(group["params"]):
                self._step_together(parameters, group)
        return loss

    def _muon_groups(self) -> Iterator[dict[str, Any]]:
        return (group for group in self.param_groups if group["muon"])

    def _step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        # Nesterov momentum: the average m <- mu m + (1 - mu) g, and the look-ahead mu m + (1 - mu) g that is applied.
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        matrices = rearrange(list(ahead), "l (s a) b -> (l s) a b", s=group["stacked"])
        updates = orthogonalized(matrices) * 0.2 * max(matrices.shape[-2:]) ** 0.5
        updates = rearrange(updates, "(l s) a b -> l (s a) b", s=group["stacked"]).to(parameters[0].dtype)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, updates.unbind(), alpha=-group["lr"])


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return about U V^T of each matrix U S V^T, by five Newton-Schulz iterations: (L, A, B) -> (L, A, B).

    Each iteration maps the singular values s to ``3.4445 s - 4.7750 s^3 + 2.0315 s^5`` by matrix products alone, in
    bfloat16 if the hardware has instructions for it.

    >>> q = torch.linalg.qr(torch.randn(1, 5, 5)).Q
    >>> values = torch.linalg.svdvals(orthogonalized(100 * q @ torch.diag(torch.linspace(0.1, 1, 5)) @ q).float())
    >>> bool((values > 0.6).all() and (values < 1.3).all())
    True
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalized(matrices.mT).mT
    x = matrices.bfloat16() if _multiplies_bfloat16(matrices.device) else matrices.float()
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    linear, cubic, quintic = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=cubic, alpha=quintic), x, beta=linear)
    return x


def _multiplies_bfloat16(device: torch.device) -> bool:
    return torch.cpu._is_avx512_bf16_supported() if device.type == "cpu" else device.type == "cuda"


def _by_shape(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the parameters that have a gradient, in one list for each shape."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    for _, same in groupby(sorted(with_gradient, key=lambda p: p.shape), key=lambda p: p.shape):
        yield list(same)
