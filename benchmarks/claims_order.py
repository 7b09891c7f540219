"""Claims about order: what follows beside what comes before, and a prefix seen both ways, on the middle of digits.

Letters in the einops patterns: n images, r s rows and columns of pixels, p q those of a block, v levels of grey.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import FAILS, HOLDS, OPEN, difference, fit, mean_interval, of_setting
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.data import Digits
from vit.model.image_gpt import ImageGPT
from vit.model.middle_model import MiddleModel
from vit.support.markdown import markdown_table

STEPS, LR, WARMUP = 400, 3e-3, 50
LEVELS, SIDE = 4, 4  # of grey, and pixels along a side
MIDDLE = slice(1, 3)  # rows that are predicted
MODEL = {"embed_dim": 36, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "rows above": {"around": False},
    "rows around, causal": {"around": True, "both_ways": False, "of_others": False},
    "rows around, both ways": {"around": True, "both_ways": True, "of_others": False},
    "rows around, of other images": {"around": True, "both_ways": True, "of_others": True},
}


class MiddleRows(nn.Module):
    """The logits of the middle rows alone: numbers of grey levels (N, r, s) -> (N, V, r', s)."""

    def __init__(self, model: ImageGPT | MiddleModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the logits of the middle rows."""
        return rearrange(self.model(pixels)[:, MIDDLE], "n r s v -> n v r s")


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model on the middle rows, and return the bits that a pixel of them takes in test images."""
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    kind = MiddleModel if setting["around"] else ImageGPT
    model = MiddleRows(kind(LEVELS, (SIDE, SIDE), **MODEL))
    if setting["around"] and not setting["both_ways"]:
        model.model.decoder.prefix = 0  # the same order of the pixels, each seen by those after it alone
    train, test = (levels(data.sets[stage].images) for stage in ("train", "test"))
    inputs = [with_rows_of_others(part, seed) if setting.get("of_others") else part for part in (train, test)]
    fit(model, inputs[0], train[:, MIDDLE], steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    model.eval()
    with torch.no_grad():
        return {"bits": F.cross_entropy(model(inputs[1]), test[:, MIDDLE]).item() / math.log(2)}


def levels(images: Tensor) -> Tensor:
    """Return the grey levels of images of half the size: bytes (N, 1, 8, 8) -> (N, 4, 4)."""
    small = reduce(images.float(), "n 1 (r p) (s q) -> n r s", "mean", p=2, q=2)
    return (small * LEVELS / 256).long()


def with_rows_of_others(pixels: Tensor, seed: int) -> Tensor:
    """Return images whose rows around the middle are those of another image."""
    others = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))].clone()
    others[:, MIDDLE] = pixels[:, MIDDLE]
    return others


def bits(values: list[float]) -> str:
    """Return mean and 95 % interval over seeds."""
    mean, low, _ = mean_interval(values)
    return f"{mean:.3f}" + (f" ± {mean - low:.3f}" if math.isfinite(low) else "")


def less(found: tuple[float, float, float]) -> str:
    """Return a difference of bits and its interval."""
    mean, low, high = found
    return f"{mean:+.3f} bits per pixel" + (f" ({low:+.3f} to {high:+.3f})" if math.isfinite(low) else "")


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about what follows and about the prefix, with their answers."""
    above, causal, both, others = (of_setting(cells, setting, "bits") for setting in SETTINGS)
    if not all((above, causal, both, others)):
        return []
    compared = (
        (
            "The rows below help to predict the middle rows",
            "Donahue et al. 2020; Bavarian et al. 2022",
            "rows above and below, minus rows above",
            difference(both, above),
            f"rows around of other images: {bits(others)}; rows above: {bits(above)}",
        ),
        (
            "A prefix seen both ways predicts better than a causal one",
            "Liu et al. 2018; Raffel et al. 2020",
            "both ways, minus causal",
            difference(both, causal),
            f"causal: {bits(causal)}; rows above alone: {bits(above)}",
        ),
    )
    return [
        {
            "sentence": sentence,
            "source": source,
            "measured": f"{what}: {less(found)}",
            "control": control,
            "answer": HOLDS if found[2] < 0 else FAILS if found[1] > 0 else OPEN,
        }
        for sentence, source, what, found, control in compared
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the bits per pixel of each setting."""
    found = {setting: of_setting(cells, setting, "bits") for setting in SETTINGS}
    lines = [{"given": setting, "bits per pixel": bits(values)} for setting, values in found.items() if values]
    note = (
        f"Middle rows of test digits of {SIDE} x {SIDE} pixels in {LEVELS} greys, mean and 95 % interval over seeds; "
        f"{math.log2(LEVELS):g} bits know nothing. {STEPS} steps of 64 images."
    )
    return f"{markdown_table(lines)}\n\n{note}"
