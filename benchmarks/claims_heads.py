"""Claims about heads and what they compute, on small models that are trained on the handwritten digits.

heads.py trains larger models on CIFAR-10. If it makes the same comparison, its numbers give the answer.
"""

import json
import statistics
from typing import Any

import heads
import torch
from claims_training import (
    FAILS,
    HOLDS,
    OPEN,
    answer,
    difference,
    fit,
    is_right,
    mean_interval,
    normalised,
    of_setting,
    percent,
    points,
)
from records import RESULTS

import vit
from vit.analysis.projections import projection_ranks
from vit.data import Digits
from vit.support.markdown import markdown_table

STEPS, LR, WARMUP = 300, 3e-3, 50
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "embed_dim": 32, "depth": 2, "mlp_ratio": 2.0}
UNSCALED = {"attention_kwargs": {"scaled": False}}
BASE = "8 heads"
NARROW, WIDTHS = 8, (8, 16, 64)  # channels of all heads together; 32 is usual
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"{count} head{'s' if count > 1 else ''}": {"num_heads": count} for count in (1, 2, 4, 8, 16)},
    "1 head, unscaled": {"num_heads": 1} | UNSCALED,
    "8 heads, unscaled": {"num_heads": 8} | UNSCALED,
    "queries, keys and values tied": {"num_heads": 8, "tie_qkv": True},
    "keys and values tied": {"num_heads": 8, "tie_kv": True},
    "keys and values of one head": {"num_heads": 8, "num_kv_heads": 1},
    "positions alone": {"num_heads": 8, "attention": "positional"},
    "uniform": {"num_heads": 8, "attention": "uniform"},
    **{f"{width} channels of keys": {"num_heads": 8, "key_dim": width} for width in WIDTHS},
    **{f"{width} channels of values": {"num_heads": 8, "value_dim": width} for width in WIDTHS},
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model. Return its test accuracy, and the ranks of queries and keys after training over those before."""
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    model = vit.VisionTransformer(**MODEL, **setting)
    has_ranks = not {"tie_qkv", "tie_kv", "num_kv_heads"} & setting.keys()
    before = ranks(model) if has_ranks else None
    train, test = data.sets["train"], data.sets["test"]
    fit(model, normalised(data, train.images), train.labels, steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    after = ranks(model) if has_ranks else None
    accuracy = is_right(model, normalised(data, test.images), test.labels).double().mean().item()
    return {"accuracy": accuracy, "ranks_before": before, "ranks_after": after}


def ranks(model: vit.VisionTransformer) -> dict[str, float]:
    """Return the effective rank of the product of queries and keys, of a head and of all heads; means over blocks."""
    found = [layer.effective_ranks() for layer in projection_ranks(model)]
    return {
        "one head": statistics.mean(of["query_key"].mean().item() for of in found),
        "all heads": statistics.mean(of["shared_query_key"].item() for of in found),
    }


def since_training(cells: dict[str, Any], setting: str, whose: str) -> list[float]:
    """Return the rank after training over that before, of each seed; nothing where heads have none of their own."""
    before, after = (of_setting(cells, setting, f"ranks_{when}") for when in ("before", "after"))
    return [one[whose] / other[whose] for one, other in zip(after, before, strict=True) if one]


def on_cifar10(row: str) -> tuple[float, float, float]:
    """Return how much a row of heads.json is below the reference under the same seeds, and its 95 % interval."""
    cells = [cell for cell in json.loads((RESULTS / "heads.json").read_text()).values() if "budget" in cell]
    reference, of_row = (
        {cell["seed"]: cell["test_accuracy"] for cell in cells if cell["row"] == name}
        for name in (heads.REFERENCE, row)
    )
    return mean_interval([reference[seed] - accuracy for seed, accuracy in of_row.items()])


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about heads with their answers."""
    found = {setting: of_setting(cells, setting, "accuracy") for setting in SETTINGS}
    if not all(found.values()):
        return []
    shown = {setting: f"{setting}: {percent(values)}" for setting, values in found.items()}
    compared = (
        (
            "Several heads do better than one of their joint width",
            "Vaswani et al. 2017, table 3",
            ("8 heads", "1 head"),
            ("2 heads", "16 heads"),
            "1 head",
        ),
        (
            "Models do better if attention weights depend on the image",
            "Vaswani et al. 2017; Tay et al. 2021 contradict",
            ("8 heads", "positions alone"),
            ("uniform",),
            "attention by positions alone",
        ),
        (
            "Attention logits need the scale 1 / sqrt(d)",
            "Vaswani et al. 2017, sec. 3.2.1",
            ("1 head", "1 head, unscaled"),
            ("8 heads, unscaled", "8 heads"),
            "8 heads, unscaled",
        ),
        (
            "Queries, keys and values need projections of their own",
            "Vaswani et al. 2017; Kitaev et al. 2020 contradict for queries and keys",
            ("8 heads", "queries, keys and values tied"),
            ("keys and values tied",),
            "queries, keys and values tied",
        ),
        (
            "Each head needs keys and values of its own",
            "Vaswani et al. 2017; Shazeer 2019 and Ainslie et al. 2023 contradict",
            ("8 heads", "keys and values of one head"),
            ("1 head",),
            "one head of keys and values",
        ),
        (
            "Narrower keys do worse at equally wide values",
            "Vaswani et al. 2017, table 3 (B)",
            ("8 heads", f"{NARROW} channels of keys"),
            (f"{NARROW} channels of values", "64 channels of keys"),
            None,
        ),
    )
    lines = []
    for sentence, source, (better, worse), controls, row in compared:
        gain = difference(found[better], found[worse])
        line = {"sentence": sentence, "source": source, "measured": f"digits, {better} minus {worse}: {points(gain)}"}
        line["control"] = "digits, " + "; ".join(shown[name] for name in (*controls, better) if name != worse)
        if row is not None:
            gain = on_cifar10(row)
            line["measured"] = f"CIFAR-10, {heads.REFERENCE} minus {row}: {points(gain)}; {line['measured']}"
        lines.append(line | {"answer": answer(gain)})
    joint, own = (since_training(cells, BASE, whose) for whose in ("all heads", "one head"))
    fallen = difference(joint, own)
    mean, low, high = fallen
    lines.append(
        {
            "sentence": "Heads learn to share the dimensions of their queries and keys",
            "source": "Cordonnier et al. 2020, fig. 1",
            "measured": f"digits, rank after training over rank before, all {BASE} together minus each head (below "
            f"0: shared): {mean:+.3f} ({low:+.3f} to {high:+.3f})",
            "control": f"all heads together: {statistics.mean(joint):.3f}; one head: {statistics.mean(own):.3f}",
            "answer": HOLDS if high < 0 else FAILS if low > 0 else OPEN,
        }
    )
    return lines


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each setting, and its ranks before and after training."""
    lines = []
    for setting in SETTINGS:
        if found := of_setting(cells, setting, "accuracy"):
            line = {"model": setting, "test accuracy": percent(found)}
            for whose in ("one head", "all heads"):
                before, after = (of_setting(cells, setting, f"ranks_{when}") for when in ("before", "after"))
                means = [statistics.mean(of[whose] for of in ranks) for ranks in (before, after) if ranks[0]]
                line[f"rank of {whose}, before and after"] = ", ".join(f"{mean:.1f}" for mean in means)
            lines.append(line)
    note = (
        f"Mean and 95 % interval over seeds. {MODEL['embed_dim']} channels, {MODEL['depth']} blocks, {STEPS} steps of "
        "64 images. Channels of keys or values are those of all 8 heads together, 32 elsewhere. Ranks are effective "
        "ranks of the product of the projections to queries and keys, means over blocks and seeds; heads with shared "
        "projections have none of their own."
    )
    return f"{markdown_table(lines)}\n\n{note}"
