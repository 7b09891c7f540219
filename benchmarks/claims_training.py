"""What the experiments of claims.py share: a short training of a small model, and what its seeds say."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor, nn

from vit.data import ImageDataModule

BATCH = 64
WEIGHT_DECAY = 0.05
CHUNK = 500  # test images at a time
HOLDS, FAILS, OPEN = "holds here", "does not hold here", "cannot tell"


def normalised(data: ImageDataModule, images: Tensor) -> Tensor:
    """Return the pixels of images as a model takes them: (B, C, H, W) of bytes -> floats."""
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (data.mean, data.std))
    return (images / 255 - mean) / std


def fit(
    model: nn.Module, images: Tensor, labels: Tensor, *, steps: int, lr: float, warmup: int, seed: int
) -> list[float]:
    """Train a model by AdamW on random batches, with a linear warm-up and a cosine decay. Return the losses."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=WEIGHT_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (warmup + 1)) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    losses = []
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(labels), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def is_right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return for each image whether its class is predicted: (B,), booleans."""
    model.eval()
    return torch.cat([model(part).argmax(dim=1) for part in images.split(CHUNK)]) == labels


def of_setting(cells: dict[str, Any], setting: str, key: str) -> list[Any]:
    """Return a number of each seed of a setting."""
    return [cell[key] for cell in cells.values() if cell["setting"] == setting]


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean and 95 % interval over seeds, by Student's t; the whole line for a single seed."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = statistics.stdev(values) / len(values) ** 0.5 * float(special.stdtrit(len(values) - 1, 0.975))
    return mean, mean - half, mean + half


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means and its 95 % interval over seeds, by Welch's t."""
    return combined([first], [second])


def combined(added: Sequence[Sequence[float]], taken: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the sum of some means minus that of others, and its 95 % interval over seeds, by Welch's t.

    >>> combined([[3.0, 5.0], [1.0, 1.0]], [[2.0, 2.0], [1.0, 1.0]])[0]
    2.0
    """
    every = [*added, *taken]
    mean = sum(map(statistics.mean, added)) - sum(map(statistics.mean, taken))
    if min(map(len, every)) < 2:
        return mean, -math.inf, math.inf
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in every]
    square = sum(part for part, _ in parts)
    if not square:
        return mean, mean, mean
    freedom = square**2 / sum(part**2 / count for part, count in parts)
    half = square**0.5 * float(special.stdtrit(freedom, 0.975))
    return mean, mean - half, mean + half


def answer(found: tuple[float, float, float]) -> str:
    """Return the answer of a difference and its interval, if the claim is that it is above zero.

    >>> answer((0.2, 0.1, 0.3)), answer((-0.2, -0.3, -0.1)), answer((0.1, -0.1, 0.3))
    ('holds here', 'does not hold here', 'cannot tell')
    """
    _, low, high = found
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def points(found: tuple[float, float, float]) -> str:
    """Return a difference of accuracies and its interval in percentage points.

    >>> points((0.25, 0.2, 0.3))
    '+25.0 points (+20.0 to +30.0)'
    """
    mean, low, high = (100 * number for number in found)
    return f"{mean:+.1f} points" + (f" ({low:+.1f} to {high:+.1f})" if math.isfinite(low) else "")


def percent(values: Sequence[float]) -> str:
    """Return mean and 95 % interval of accuracies over seeds; "" of none. No accuracy is outside of 0 to 100 %.

    >>> percent([0.5, 0.52, 0.54]), percent([0.9, 1.0]), percent([0.5])
    ('52.0 % (47.0 to 57.0)', '95.0 % (31.5 to 100.0)', '50.0 %')
    """
    return mean_with_interval(values, ".1f", " %", 100.0, (0.0, 1.0))


def mean_with_interval(
    values: Sequence[float],
    form: str,
    unit: str = "",
    factor: float = 1.0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """Return mean and 95 % interval over seeds: the mean alone of one value, "" of none.

    >>> mean_with_interval([1.0, 2.0, 3.0], ".1f", " times"), mean_with_interval([0.1], ".3f")
    ('2.0 times (-0.5 to 4.5)', '0.100')
    """
    if not values:
        return ""
    mean, low, high = mean_interval(values)
    text = f"{factor * mean:{form}}{unit}"
    if not math.isfinite(low):
        return text
    return f"{text} ({factor * max(low, bounds[0]):{form}} to {factor * min(high, bounds[1]):{form}})"
