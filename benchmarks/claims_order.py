"""Claims about order: what follows, a prefix seen both ways, and all pixels at once, on the middle of digits.

Letters in the einops patterns: n images, r s rows and columns of pixels, p q those of a block, v levels of grey.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import FAILS, HOLDS, OPEN, difference, fit, mean_with_interval, of_setting
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.data import Digits
from vit.model.image_gpt import ImageGPT
from vit.model.masked_image import MaskedImageModel
from vit.model.middle_model import MiddleModel
from vit.model.pixel_model import PixelModel
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
    "rows around, all pixels at once": {"around": True, "at_once": True},
}


class MiddleRows(nn.Module):
    """The logits of the middle rows alone: numbers of grey levels (N, r, s) -> (N, V, r', s)."""

    def __init__(self, model: PixelModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the logits of the middle rows."""
        counted = torch.zeros_like(pixels, dtype=torch.bool)
        counted[:, MIDDLE] = True
        return rearrange(self.model(*self.model.forward_inputs(pixels, counted))[:, MIDDLE], "n r s v -> n v r s")


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model on the middle rows, and return the bits that a pixel of them takes in test images."""
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    model = MiddleRows(build(**setting))
    train, test = (levels(data.sets[stage].images) for stage in ("train", "test"))
    inputs = [with_rows_of_others(part, seed) if setting.get("of_others") else part for part in (train, test)]
    fit(model, inputs[0], train[:, MIDDLE], steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    model.eval()
    with torch.no_grad():
        return {"bits": F.cross_entropy(model(inputs[1]), test[:, MIDDLE]).item() / math.log(2)}


def build(around: bool, both_ways: bool = True, of_others: bool = False, at_once: bool = False) -> PixelModel:
    """Return an untrained model of a setting."""
    kind = MaskedImageModel if at_once else MiddleModel if around else ImageGPT
    model = kind(LEVELS, (SIDE, SIDE), **MODEL)
    if not both_ways:
        model.decoder.prefix = 0  # the same order of the pixels, each seen by those after it alone
    return model


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
    return mean_with_interval(values, ".3f")


def less(found: tuple[float, float, float]) -> str:
    """Return a difference of bits and its interval."""
    mean, low, high = found
    return f"{mean:+.3f} bits per pixel" + (f" ({low:+.3f} to {high:+.3f})" if math.isfinite(low) else "")


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about what follows, the prefix and the order, with their answers."""
    above, causal, both, others, at_once = (of_setting(cells, setting, "bits") for setting in SETTINGS)
    if not all((above, causal, both, others, at_once)):
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
        (
            "Pixels predicted one after another are predicted better than all at once",
            "Gu et al. 2018, of translations; Chang et al. 2022 contradict",
            "one after another, minus all at once",
            difference(both, at_once),
            f"all at once, which sees no pixel of the middle: {bits(at_once)}; rows around of other images: "
            f"{bits(others)}",
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
