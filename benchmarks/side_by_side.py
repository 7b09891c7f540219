"""Timing of candidates side by side, in one process and in turn.

A shared machine is fast one minute and slow the next. So each round calls each candidate once, and speeds are compared
within a round: the ratio of two calls in the same minute is more certain than that of two calls in different ones.
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
    """Return automatic mixed precision for bfloat16, and no change for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def interleaved(
    candidates: dict[str, Callable[[], object]],
    rounds: int,
    warm_up: int,
    device: torch.device,
    prepare: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """Return the seconds of each call of each candidate, one call each per round.

    Every other round has the reverse order, so that no candidate always follows the same one or is always the last.

    Args:
        candidates: The calls to time, by name.
        rounds: Timed calls of each candidate.
        warm_up: Calls of each candidate before those, not timed.
        device: The device that the calls use.
        prepare: Called with the candidate's name before each of its calls, not timed.
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
    """Return the seconds until a call's work is done; a GPU must be idle when it begins."""
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a function that makes a call several times."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def compared(times: dict[str, list[float]], images: int, peers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return images per second of each candidate, and its speed as a multiple of that of the fastest peer.

    Both are quartiles over the rounds; the multiple is taken within a round. A call processes ``images`` images.
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
    """Return the first quartile, the median and the third quartile.

    >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.tensor(list(values), dtype=torch.float64).quantile(shares).tolist()


def spread(three: list[float] | None, form: str) -> str:
    """Return quartiles as text, "" for None.

    >>> spread([2.0, 3.0, 4.0], ".1f")
    '3.0 (2.0 to 4.0)'
    """
    return "{1:{0}} ({2:{0}} to {3:{0}})".format(form, three[1], three[0], three[2]) if three else ""


def speed(three: list[float] | None) -> str:
    """Return quartiles of images per second as text, "" for None.

    >>> speed([1234.5, 130000.0, 131234.5]), speed([2.84, 3.21, 4.0])
    ('130,000 (1,234 to 131,234)', '3.2 (2.8 to 4.0)')
    """
    return spread(three, ",.0f" if three and three[1] >= 100 else ",.1f")


def matmul_ceiling(products: Iterable[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of the fastest of some matrix products: the ceiling of a model made of them.

    Args:
        products: Rows, input and output channels of each product.
        dtype: Type of the matrices, which are random, since products of zeros are faster.
        device: The device that multiplies.
    """
    fastest = 0.0
    repeats = 100 if device.type == "cuda" else 1  # on a GPU, enough to hide the wait for the last one
    for rows, inputs, outputs in products:
        x = torch.randn(rows, inputs, dtype=dtype, device=device)
        weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
        multiply = repeated(partial(F.linear, x, weight), repeats)
        seconds = min(timed(multiply, device) for _ in range(20))
        fastest = max(fastest, repeats * 2 * rows * inputs * outputs / seconds)
    return fastest
