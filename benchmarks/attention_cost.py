"""Time and memory of one attention layer with each mechanism: 64 channels, 2 heads, batch 1, float32.

Forward and backward, interleaved over the mechanisms; a length that would take too much time or memory is left out.
The peak of memory is measured in a process of its own:

    python benchmarks/attention_cost.py NAME TOKENS
"""

import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from side_by_side import DEVICE, synchronise

from vit.attention import MultiHeadAttention

EMBED_DIM, NUM_HEADS = 64, 2
MEASURED = "forward and backward"
LONGEST_SECONDS = 60.0


def costs(names: list[str], tokens: int, rounds: int, before: dict[str, Any]) -> dict[str, Any]:
    """Return time and memory of mechanisms at one length, by name; None where either would be too much.

    Args:
        names: The mechanisms.
        tokens: The length, a square.
        rounds: Interleaved measurements of each time, fewer where they take minutes.
        before: The costs at shorter lengths, by length.
    """
    affordable = [name for name in names if _affordable(name, tokens, before)]
    layers = {name: layer(name, tokens) for name in affordable}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in affordable}
    start = time.monotonic()
    for done in range(rounds + 1):
        if done > 3 and time.monotonic() - start > LONGEST_SECONDS:
            break
        for name in affordable:  # in turn: the speed of a shared machine changes
            times[name].append(seconds(*layers[name]))
    result: dict[str, Any] = dict.fromkeys(names)
    for name in affordable:
        forward, both = zip(*times[name][1:], strict=True)  # the first round warms up
        asked = [sys.executable, __file__, name, str(tokens)]
        finished = subprocess.run(asked, capture_output=True, text=True, check=False)
        if finished.returncode:
            print(f"error: {name} at {tokens} tokens: exit status {finished.returncode}", file=sys.stderr)
            continue
        result[name] = {
            "seconds": {"forward": statistics.median(forward), MEASURED: statistics.median(both)},
            "rounds": len(both),
            "bytes": json.loads(finished.stdout),
        }
        print(f"{tokens} tokens, {name}: {result[name]}", file=sys.stderr)
    return result


def layer(name: str, tokens: int) -> tuple[MultiHeadAttention, torch.Tensor, tuple[int, int]]:
    """Return an attention layer with the mechanism's default options, a sequence for it, and its grid."""
    grid = (math.isqrt(tokens), math.isqrt(tokens))
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mechanism=name, grid_size=grid).to(DEVICE)
    return attention, torch.randn(1, tokens, EMBED_DIM, requires_grad=True, device=DEVICE), grid


def seconds(attention: MultiHeadAttention, x: torch.Tensor, grid: tuple[int, int]) -> tuple[float, float]:
    """Return the seconds of a forward pass without gradients, and of a forward and backward pass."""
    start = _now()
    with torch.no_grad():
        attention(x, grid=grid)
    middle = _now()
    attention(x, grid=grid).sum().backward()
    return middle - start, _now() - middle


def peak_bytes(name: str, tokens: int) -> dict[str, int]:
    """Return the peak memory of the two passes beyond what the process held before; call it once in a process."""
    seconds(*layer(name, 64))  # libraries allocate their own memory first
    attention, x, grid = layer(name, tokens)
    before = _peak_since_start()
    with torch.no_grad():
        attention(x, grid=grid)
    forward = _peak() - before
    attention(x, grid=grid).sum().backward()
    return {"forward": forward, MEASURED: _peak() - before}


def _affordable(name: str, tokens: int, before: dict[str, Any]) -> bool:
    """Return whether time and memory suffice if both grow with the square of the length."""
    if not before:
        return True
    last_tokens, last = list(before.items())[-1]
    growth = (tokens / int(last_tokens)) ** 2
    cost = last[name]
    return (
        cost is not None
        and cost["seconds"][MEASURED] * growth < LONGEST_SECONDS
        and cost["bytes"][MEASURED] * growth < 0.8 * _free_bytes()
    )


def _now() -> float:
    synchronise(DEVICE)
    return time.perf_counter()


def _peak_since_start() -> int:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current use
    return _peak()


def _peak() -> int:
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _free_bytes() -> int:
    if DEVICE.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return 1024 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])


if __name__ == "__main__":
    print(json.dumps(peak_bytes(sys.argv[1], int(sys.argv[2]))))
