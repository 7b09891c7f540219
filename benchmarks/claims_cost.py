"""Claims about time and memory of attention over the number of tokens, the width of a window, and the heads computed.

Over tokens and windows, the mechanisms alone are measured, without projections: one head of 32 channels, one image.
Over heads, whole layers are. All passes are forward, in float32.
"""

import math
import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from claims_training import FAILS, HOLDS, OPEN, mean_interval, of_setting
from scipy import special
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vit.attention import MECHANISMS, MultiHeadAttention, scaled_dot_product_attention
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, BROWN, GREEN, GREY, ORANGE, PINK, VIOLET

CHANNELS = 32
SIDES = (64, 80, 96, 112, 128, 160, 192, 256)  # of square grids: 4,096 to 65,536 tokens; below, calls take the time
WINDOWS, WINDOW_SIDE = (8, 16, 32, 64, 128), 128  # 16,384 tokens
HEADS, KEPT = 8, (1, 2, 4, 8)
WAYS = ("chosen", "pruned")  # for each image, or for good
HEADS_SIDE, HEADS_IMAGES = 32, 4  # 1,024 tokens
ROUNDS = 2
MOST_SECONDS, MOST_BYTES = 20.0, 1.5e9  # of a pass; a mechanism that would take more is stopped
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": 8},
    "recurrent": {"num_heads": 1, "head_dim": CHANNELS},
    "convolution": {"num_heads": 1, "kernel": 3},
}
COLORS = {
    "explicit": GREY,
    "softmax": BLUE,
    "chunked": VIOLET,
    "window": ORANGE,
    "sparse": BROWN,
    "linear": GREEN,
    "recurrent": PINK,
    "convolution": "black",
}
SETTINGS: dict[str, dict[str, Any]] = {"interleaved": {}}  # of which the seeds are runs

Pass = Callable[[], Tensor]


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive at once, beside those that were there before; ``peak`` is the most.

    What a kernel allocates and frees inside itself is not seen.
    """

    def __init__(self, *before: Tensor) -> None:
        super().__init__()
        self.known = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in before}
        self.alive = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and id(storage := tensor.untyped_storage()) not in self.known:
                key, size = id(storage), storage.nbytes()
                self.known[key] = None
                self.alive += size
                weakref.finalize(storage, self._free, key, size)
        self.peak = max(self.peak, self.alive)
        return output

    def _free(self, key: int, size: int) -> None:
        del self.known[key]
        self.alive -= size


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the median seconds and the peak bytes of each mechanism by tokens, of windows by width, and by heads."""
    torch.manual_seed(seed)
    over_tokens: dict[str, Any] = {name: {} for name in COLORS}
    for side in SIDES:
        passes = {name: one_pass(name, side) for name in COLORS if affordable(over_tokens[name], side**2)}
        for name, cost in costs(passes).items():
            over_tokens[name][str(side**2)] = cost
    over_window = costs({str(width): one_pass("window", WINDOW_SIDE, {"window": width}) for width in WINDOWS})
    over_heads = costs({f"{way} {k}": of_heads(way, k) for way in WAYS for k in KEPT})
    by_way = {way: {str(k): over_heads[f"{way} {k}"] for k in KEPT} for way in WAYS}
    return {"tokens": over_tokens, "window": over_window, "heads": by_way}


def one_pass(name: str, side: int, options: dict[str, Any] | None = None) -> tuple[Pass, tuple[Tensor, ...]]:
    """Return the pass of a mechanism over a square grid, and its inputs."""
    q, k, v = torch.randn(3, 1, 1, side**2, CHANNELS)
    if name == "explicit":
        return lambda: scaled_dot_product_attention(q, k, v)[0], (q, k, v)
    mechanism = MECHANISMS[name](**(OPTIONS.get(name, {}) if options is None else options))
    inputs = {"grid": (side, side)} if "grid" in mechanism.takes else {}
    return lambda: mechanism(q, k, v, **inputs), (q, k, v)


def of_heads(way: str, k: int) -> tuple[Pass, tuple[Tensor, ...]]:
    """Return the pass of a layer that computes k heads, chosen for each image or the only ones left, and its inputs."""
    width = HEADS * CHANNELS
    if way == "chosen":
        layer = MultiHeadAttention(width, HEADS, mechanism="routed", mechanism_kwargs={"k": k})
    else:
        layer = MultiHeadAttention(width, k, key_dim=k * CHANNELS, value_dim=k * CHANNELS)
    x = torch.randn(HEADS_IMAGES, HEADS_SIDE**2, width)
    return lambda: layer(x), (x,)


@torch.no_grad()
def costs(passes: dict[str, tuple[Pass, tuple[Tensor, ...]]]) -> dict[str, dict[str, float]]:
    """Return seconds and bytes of passes: a first one counts, and the times of the others are interleaved."""
    counted = {}
    for name, (run, inputs) in passes.items():
        with LiveBytes(*inputs) as memory:
            run()
        counted[name] = memory.peak
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(ROUNDS):
        for name, (run, _) in passes.items():  # in turn: the speed of a shared machine changes
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: {"seconds": statistics.median(times[name]), "bytes": counted[name]} for name in passes}


def affordable(before: dict[str, Any], tokens: int) -> bool:
    """Return whether a pass stays within the budget if it grows as between the last two lengths.

    Its power is taken for 1 to 2, as the times of two lengths are noisy, and for 2 after a single length.
    """
    if not before:
        return True
    lengths = list(map(int, before))
    last = before[str(lengths[-1])]
    if lengths[-1] != max(side**2 for side in SIDES if side**2 < tokens):
        return False  # it was stopped at an earlier length
    for key, most in (("seconds", MOST_SECONDS), ("bytes", MOST_BYTES)):
        power = 2.0
        if len(lengths) > 1:
            grown = math.log(last[key] / before[str(lengths[-2])][key]) / math.log(lengths[-1] / lengths[-2])
            power = min(2.0, max(1.0, grown))
        if last[key] * (tokens / lengths[-1]) ** power > most:
            return False
    return True


def exponent(sizes: list[float], values: list[float]) -> tuple[float, float, float]:
    """Return p of ``value ~ size^p`` and its 95 % interval, by least squares of the logarithms.

    >>> [round(number, 6) for number in exponent([1, 2, 4, 8], [3, 12, 48, 192])]
    [2.0, 2.0, 2.0]
    """
    x, y = ([math.log(number) for number in numbers] for numbers in (sizes, values))
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    spread = sum((one - mean_x) ** 2 for one in x)
    slope = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True)) / spread
    left = sum((other - mean_y - slope * (one - mean_x)) ** 2 for one, other in zip(x, y, strict=True))
    half = (left / (len(x) - 2) / spread) ** 0.5 * float(special.stdtrit(len(x) - 2, 0.975))
    return slope, slope - half, slope + half


def medians(cells: dict[str, Any], part: str, name: str | None, key: str) -> dict[int, float]:
    """Return the median over the runs by size."""
    runs = of_setting(cells, "interleaved", part)
    runs = runs if name is None else [run[name] for run in runs]
    sizes = sorted({int(size) for run in runs for size in run})
    return {size: statistics.median(run[str(size)][key] for run in runs if str(size) in run) for size in sizes}


def fitted(cells: dict[str, Any], part: str, name: str | None, key: str) -> tuple[float, float, float]:
    """Return the exponent of seconds or bytes of a mechanism over the sizes of a part."""
    found = medians(cells, part, name, key)
    return exponent(list(found), list(found.values()))


def power(found: tuple[float, float, float]) -> str:
    """Return an exponent and its interval.

    >>> power((1.0, 0.95, 1.05))
    '1.00 (0.95 to 1.05)'
    """
    return "{:.2f} ({:.2f} to {:.2f})".format(*found)


def between(steep: tuple[float, float, float], flat: tuple[float, float, float]) -> str:
    """Return whether one exponent is nearer to 2 and another nearer to 1, as far as their intervals tell."""
    if steep[1] > 1.5 > flat[2]:
        return HOLDS
    return FAILS if steep[2] < 1.5 or flat[1] > 1.5 else OPEN


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about time, memory, windows and heads with their answers."""
    if not cells:
        return []
    seconds = {name: fitted(cells, "tokens", name, "seconds") for name in COLORS}
    memory = {name: fitted(cells, "tokens", name, "bytes") for name in COLORS}
    wide = fitted(cells, "window", None, "seconds")
    half = shares_of_time(cells, "chosen")
    found = mean_interval(half)
    return [
        {
            "sentence": "The time of softmax attention grows with the square of the tokens, that of linear "
            "attention with the tokens",
            "source": "Vaswani et al. 2017, table 1; Katharopoulos et al. 2020",
            "measured": f"exponent over the tokens: softmax {power(seconds['softmax'])}, linear "
            f"{power(seconds['linear'])}",
            "control": f"convolution {power(seconds['convolution'])}; recurrent {power(seconds['recurrent'])}",
            "answer": between(seconds["softmax"], seconds["linear"]),
        },
        {
            "sentence": "Exact softmax attention needs no memory that grows with the square of the tokens",
            "source": "Rabe and Staats 2021; Dao et al. 2022",
            "measured": f"exponent over the tokens: explicit {power(memory['explicit'])}, chunked "
            f"{power(memory['chunked'])}",
            "control": f"the time of the chunked one: {power(seconds['chunked'])}",
            "answer": between(memory["explicit"], memory["chunked"]),
        },
        {
            "sentence": "The time of window attention grows with the tokens, and with the square of the window's side",
            "source": "Liu et al. 2021, eq. 2",
            "measured": f"exponent over the tokens: {power(seconds['window'])}; over the side: {power(wide)}",
            "control": f"softmax over the tokens: {power(seconds['softmax'])}",
            "answer": between(wide, seconds["window"]),
        },
        {
            "sentence": "Heads that are not chosen for an image save time",
            "source": "Jin et al. 2024",
            "measured": f"time of a layer with {HEADS // 2} of {HEADS} heads chosen over that of all: {ratio(half)}",
            "control": f"with {HEADS // 2} heads left after pruning: "
            f"{ratio(shares_of_time(cells, 'pruned'))}; all heads, with a router over without: "
            f"{ratio(times_of_router(cells))}",
            "answer": HOLDS if found[2] < 1 else FAILS if found[1] > 1 else OPEN,
        },
    ]


def shares_of_time(cells: dict[str, Any], way: str) -> list[float]:
    """Return the seconds of a layer with half of the heads over those with all, of each run."""
    runs = (run[way] for run in of_setting(cells, "interleaved", "heads"))
    return [run[str(HEADS // 2)]["seconds"] / run[str(HEADS)]["seconds"] for run in runs]


def times_of_router(cells: dict[str, Any]) -> list[float]:
    """Return the seconds of a layer that chooses all heads over those of one without a router, of each run."""
    of_all = ([run[way][str(HEADS)]["seconds"] for way in WAYS] for run in of_setting(cells, "interleaved", "heads"))
    return [chosen / plain for chosen, plain in of_all]


def ratio(values: list[float]) -> str:
    """Return the mean of ratios, and its 95 % interval over runs.

    >>> ratio([0.5, 0.6, 0.7])
    '0.60 (0.35 to 0.85)'
    """
    mean, low, high = mean_interval(values)
    return f"{mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if math.isfinite(low) else "")


def table(cells: dict[str, Any]) -> str:
    """Return the exponents and the cost at a few lengths, and the cost over the side of the window and over heads."""
    lines = []
    for name in COLORS:
        seconds, memory = (medians(cells, "tokens", name, key) for key in ("seconds", "bytes"))
        line = {"mechanism": name, "time ~ tokens^": power(fitted(cells, "tokens", name, "seconds"))}
        line["memory ~ tokens^"] = power(fitted(cells, "tokens", name, "bytes"))
        for tokens in (4096, 9216, 16384, 65536):
            known = tokens in seconds
            line[f"{tokens:,} tokens"] = (
                f"{1e3 * seconds[tokens]:.3g} ms, {memory[tokens] / 1e6:.3g} MB" if known else ""
            )
        lines.append(line)
    wide, most = (medians(cells, "window", None, key) for key in ("seconds", "bytes"))
    over_window = [
        {"window": f"{width} x {width}", "time": f"{1e3 * wide[width]:.3g} ms", "memory": f"{most[width] / 1e6:.3g} MB"}
        for width in wide
    ]
    chosen, pruned = (medians(cells, "heads", way, "seconds") for way in WAYS)
    over_heads = [
        {
            "heads": f"{k} of {HEADS}",
            "chosen for each image": f"{1e3 * chosen[k]:.3g} ms",
            "left after pruning": f"{1e3 * pruned[k]:.3g} ms",
        }
        for k in KEPT
    ]
    note = (
        f"One head of {CHANNELS} channels, one image, forward, float32, median of interleaved runs; memory is the peak "
        "of live tensors, counted. Exponents with 95 % intervals are fitted to all lengths measured. A mechanism stops "
        f"where a pass would take more than {MOST_SECONDS:g} s or {MOST_BYTES / 1e9:g} GB. Windows: "
        f"{WINDOW_SIDE**2:,} tokens; exponents over the side: time {power(fitted(cells, 'window', None, 'seconds'))}, "
        f"memory {power(fitted(cells, 'window', None, 'bytes'))}. Heads: a whole layer of {HEADS} heads of {CHANNELS} "
        f"channels, {HEADS_IMAGES} images of {HEADS_SIDE**2:,} tokens."
    )
    tables = (markdown_table(rows) for rows in (lines, over_window, over_heads))
    return "\n\n".join((*tables, note))
