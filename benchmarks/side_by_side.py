"""Candidates in turn on one machine.

A shared machine is fast one minute and slow the next. So all candidates run in one process, one call each per round,
and are compared within a round: the ratio of two calls that saw the same minute says more than two times that did not.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Automatic mixed precision for bfloat16, nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def interleaved(
    candidates: dict[str, Callable[[], object]],
    rounds: int,
    warm_up: int,
    device: torch.device,
    prepare: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of each call of each candidate, one call each per round.

    Every other round goes backwards, so that nobody always follows the same one or always comes last.

    Args:
        candidates: What to time, by name.
        rounds: Timed calls of each.
        warm_up: Calls of each before that, not timed.
        device: Where they compute.
        prepare: Called with the candidate's name before each of its calls, off the clock.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(-warm_up, rounds):
        for name in candidates if turn % 2 == 0 else reversed(candidates):
            prepare(name)
            synchronise(device)
            seconds = timed(candidates[name], device)
            if turn >= 0:
                times[name].append(seconds)
    return times


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds until a call's work is done, on the GPU too; nothing may be under way there when it begins."""
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """A call that makes several."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def synchronise(device: torch.device) -> None:
    """Wait until the GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def compared(times: dict[str, list[float]], images: int, peers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Images per second of each candidate, and its speed as a multiple of that of the fastest among the peers.

    Both are quartiles over the rounds, of which each has ``images`` per call; the multiple is taken within a round.
    """
    best = min((name for name in times if name in peers), key=lambda name: statistics.median(times[name]), default=None)
    rows = {}
    for name, seconds in times.items():
        rows[name] = {"images_per_second": quartiles(images / second for second in seconds)}
        if best is not None:
            ratios = (other / second for other, second in zip(times[best], seconds, strict=True))
            rows[name]["against_best_peer"] = quartiles(ratios)
    return rows


def quartiles(values: Iterable[float]) -> list[float]:
    """The first quartile, the median and the third.

    >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.tensor(list(values), dtype=torch.float64).quantile(shares).tolist()


def spread(three: list[float] | None, form: str) -> str:
    """Quartiles as text, nothing for None.

    >>> spread([2.0, 3.0, 4.0], ".1f")
    '3.0 (2.0 to 4.0)'
    """
    return "{1:{0}} ({2:{0}} to {3:{0}})".format(form, three[1], three[0], three[2]) if three else ""


def speed(three: list[float] | None) -> str:
    """Quartiles of images per second as text, nothing for None.

    >>> speed([1234.5, 130000.0, 131234.5]), speed([2.84, 3.21, 4.0])
    ('130,000 (1,234 to 131,234)', '3.2 (2.8 to 4.0)')
    """
    return spread(three, ",.0f" if three and three[1] >= 100 else ",.1f")


def matmul_ceiling(products: Iterable[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of the fastest of some matrix products: what is left to a model when all else costs nothing.

    Args:
        products: Rows, input and output channels of each product.
        dtype: Type of the numbers, which are random: products of zeros are faster.
        device: Where to multiply.
    """
    fastest = 0.0
    repeats = 100 if device.type == "cuda" else 1  # on a GPU, so many that waiting for the last costs nothing
    for rows, inputs, outputs in products:
        x = torch.randn(rows, inputs, dtype=dtype, device=device)
        weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
        multiply = repeated(partial(F.linear, x, weight), repeats)
        seconds = min(timed(multiply, device) for _ in range(20))
        fastest = max(fastest, repeats * 2 * rows * inputs * outputs / seconds)
    return fastest
