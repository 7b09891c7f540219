"""How far samples are from the standard normal distribution: the statistic of Epps and Pulley on random projections.

Letters in the einops patterns: v views, b samples, k channels, s directions, t arguments of the function.
"""

import torch
from einops import einsum, rearrange
from torch import Tensor

from vit.objectives.processes import mean_over_processes, number_of_processes

DIRECTIONS = 64  # drawn anew in each step
LARGEST, ARGUMENTS = 5.0, 17  # of the characteristic function: from 0 on, as it is symmetric


def epps_pulley(samples: Tensor, is_real: Tensor) -> Tensor:
    """Return the statistic of Epps and Pulley (1983) of each column of real samples: (V, B, S), (B,) -> (V, S).

    ``B * integral |mean_b exp(i t x_b) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt``: the distance of the empirical
    characteristic function from that of the standard normal distribution. Of normal samples its mean is
    ``sqrt(2 pi) (1 - 1 / sqrt(3))``, about 1.06, for any B. With several processes, the samples are those of all
    processes, without padding.
    """
    arguments = torch.linspace(0, LARGEST, ARGUMENTS, device=samples.device, dtype=samples.dtype)
    window = (-(arguments**2) / 2).exp()
    weights = window * 2 * LARGEST / (ARGUMENTS - 1)  # twice that of half the line
    weights[0], weights[-1] = weights[0] / 2, weights[-1] / 2  # the rule of trapezoids
    angles = rearrange(samples, "v b s -> v b s 1") * arguments
    counted = is_real.to(samples)
    count = mean_over_processes(counted.sum())
    real, imaginary = (
        mean_over_processes(einsum(part, counted, "v b s t, b -> v s t")) / count
        for part in (angles.cos(), angles.sin())
    )
    distances = (real - window).square() + imaginary.square()
    return einsum(distances, weights, "v s t, t -> v s") * count * number_of_processes()


def sketched_normality(samples: Tensor, is_real: Tensor, step: int) -> Tensor:
    """Return the mean statistic of real samples over random directions: (V, B, K), (B,) -> a number.

    A distribution is the isotropic normal one if its projections on all directions are standard normal (Balestriero and
    LeCun 2025, LeJEPA). The directions of a step are the same in all processes.
    """
    drawn = torch.randn(samples.shape[2], DIRECTIONS, generator=torch.Generator().manual_seed(step))
    directions = (drawn / drawn.norm(dim=0)).to(samples)
    return epps_pulley(einsum(samples, directions, "v b k, k s -> v b s"), is_real).mean()
