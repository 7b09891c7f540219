"""Claims about wrong labels and corrupted images, on the handwritten digits; convolution stands beside attention."""

from typing import Any

import torch
from claims_training import FAILS, HOLDS, OPEN, difference, fit, is_right, normalised, of_setting, percent, points

import vit
from vit.data import Digits
from vit.data.corrupt import change_labels, corrupt_images
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, GREEN

STEPS, LR, WARMUP = 300, 3e-3, 50
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "embed_dim": 36, "num_heads": 9, "depth": 2}
MODEL |= {"mlp_ratio": 2.0, "pool": "mean"}
COLORS = {"softmax": BLUE, "convolution": GREEN}
SHARES = (0.0, 0.2, 0.4, 0.6)
ASKED = 0.4  # share that the sentence is about
CORRUPTIONS = {"jpeg": 10.0, "blur": 1.0, "contrast": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, {share:.0%} {'left out' if left_out else 'wrong'}": {
        "attention": name,
        "share": share,
        "left_out": left_out,
    }
    for left_out, shares in ((False, SHARES), (True, (ASKED,)))
    for share in shares
    for name in COLORS
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model, and return its accuracy on test images as they are and under each corruption.

    The seed also draws which labels are wrong. The images that are left out are those whose labels would be wrong.
    """
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    train, test = data.sets["train"], data.sets["test"]
    labels = change_labels(train.labels, setting["share"], Digits.num_classes, seed)
    is_wrong = labels != train.labels
    images = normalised(data, train.images)
    if setting["left_out"]:
        images, labels = images[~is_wrong], labels[~is_wrong]
    model = vit.VisionTransformer(**MODEL, attention=setting["attention"])
    fit(model, images, labels, steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    versions = {"as they are": test.images} | {
        name: corrupt_images(test.images, {name: strength}) for name, strength in CORRUPTIONS.items()
    }
    return {
        "images": len(labels),
        "wrong": 0 if setting["left_out"] else int(is_wrong.sum()),
        "accuracy": {
            name: is_right(model, normalised(data, version), test.labels).double().mean().item()
            for name, version in versions.items()
        },
    }


def clean(cells: dict[str, Any], setting: str) -> list[float]:
    """Return the accuracy of each seed on test images as they are."""
    return [found["as they are"] for found in of_setting(cells, setting, "accuracy")]


def lost(cells: dict[str, Any], name: str) -> list[float]:
    """Return the accuracy that each seed loses by a corruption, the mean over all corruptions."""
    found = of_setting(cells, f"{name}, 0% wrong", "accuracy")
    return [of["as they are"] - sum(of[kind] for kind in CORRUPTIONS) / len(CORRUPTIONS) for of in found]


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about wrong labels and corrupted images with their answers."""
    wrong, without = clean(cells, f"softmax, {ASKED:.0%} wrong"), clean(cells, f"softmax, {ASKED:.0%} left out")
    of_convolution = [clean(cells, f"convolution, {ASKED:.0%} {what}") for what in ("wrong", "left out")]
    losses = [lost(cells, name) for name in ("softmax", "convolution")]
    if not all((wrong, without, *of_convolution, *losses)):
        return []
    harm, robust = difference(wrong, without), difference(*losses)
    return [
        {
            "sentence": "Wrong labels do more harm than missing ones",
            "source": "Zhang et al. 2017; Rolnick et al. 2017 contradict",
            "measured": f"{100 * ASKED:.0f} % of the labels wrong, minus these images left out: {points(harm)}",
            "control": f"the same of convolution: {points(difference(*of_convolution))}; all labels right: "
            f"{percent(clean(cells, 'softmax, 0% wrong'))}",
            "answer": HOLDS if harm[2] < 0 else FAILS if harm[1] > 0 else OPEN,
        },
        {
            "sentence": "Attention is more robust than convolution to corrupted images",
            "source": "Naseer et al. 2021; Bai et al. 2021 contradict",
            "measured": f"points lost to {', '.join(CORRUPTIONS)}, softmax minus convolution (above 0: softmax loses "
            f"more): {points(robust)}",
            "control": f"on images as they are: softmax {percent(clean(cells, 'softmax, 0% wrong'))}, convolution "
            f"{percent(clean(cells, 'convolution, 0% wrong'))}",
            "answer": HOLDS if robust[2] < 0 else FAILS if robust[1] > 0 else OPEN,
        },
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each setting on test images as they are and corrupted."""
    lines = []
    for setting in SETTINGS:
        if found := of_setting(cells, setting, "accuracy"):
            line = {"trained with": setting, "training images": str(of_setting(cells, setting, "images")[0])}
            line["wrong labels"] = str(of_setting(cells, setting, "wrong")[0])
            lines.append(line | {kind: percent([of[kind] for of in found]) for kind in ("as they are", *CORRUPTIONS)})
    strengths = ", ".join(f"{name} {strength:g}" for name, strength in CORRUPTIONS.items())
    note = f"Test accuracy, mean and 95 % interval over seeds. {STEPS} steps of 64 images. Corruptions: {strengths}."
    return f"{markdown_table(lines)}\n\n{note}"
