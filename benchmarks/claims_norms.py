"""Claims about residual connections and the place of norms, on the handwritten digits."""

import statistics
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import (
    FAILS,
    HOLDS,
    OPEN,
    answer,
    difference,
    fit,
    is_right,
    normalised,
    of_setting,
    percent,
    points,
)

import vit
from vit.data import Digits
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, GREEN, ORANGE

STEPS, LR, WARMUP = 400, 3e-3, 100
LITTLE = 0.01  # gain of accuracy up to which a warm-up is not needed
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2.0}
DEPTHS = (2, 6, 12)
WIRINGS: dict[str, dict[str, Any]] = {
    f"{norm}{'' if residual else ', no residual'}": {"norm": norm, "residual": residual}
    for residual in (True, False)
    for norm in ("pre", "post", "none")
}
COLORS = dict(zip(WIRINGS, (BLUE, ORANGE, GREEN) * 2, strict=True))  # dashed without residual connections
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, depth {depth}{', warm-up' if warmup else ''}": wiring | {"depth": depth, "warmup": warmup}
    for depth in DEPTHS
    for name, wiring in WIRINGS.items()
    for warmup in (0, WARMUP)
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model, and return its test accuracy and the norm of the gradient of each block before training."""
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    arguments = {name: value for name, value in setting.items() if name != "warmup"}
    model = vit.VisionTransformer(**MODEL, **arguments)
    images, labels = normalised(data, data.sets["train"].images), data.sets["train"].labels
    norms = gradient_norms(model, images[:256], labels[:256])
    losses = fit(model, images, labels, steps=STEPS, lr=LR, warmup=setting["warmup"], seed=seed)
    test = data.sets["test"]
    accuracy = is_right(model, normalised(data, test.images), test.labels).double().mean().item()
    return {"accuracy": accuracy, "gradient_norms": norms, "loss": sum(losses[-50:]) / 50}


def gradient_norms(model: vit.VisionTransformer, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Return the norm of the gradient of the loss by all weights of each block, first block first."""
    F.cross_entropy(model(images), labels).backward()
    found = [torch.cat([p.grad.flatten() for p in block.parameters()]).norm().item() for block in model.blocks]
    model.zero_grad()
    return found


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the three sentences with their answers, all at the greatest depth."""
    deep = f"depth {DEPTHS[-1]}"
    found = {name: of_setting(cells, name, "accuracy") for name in SETTINGS}
    pre, post, none = (found[f"{norm}, {deep}, warm-up"] for norm in ("pre", "post", "none"))
    cold_pre, cold_post = (found[f"{norm}, {deep}"] for norm in ("pre", "post"))
    bare, shallow = (found[f"pre, no residual, depth {depth}, warm-up"] for depth in (DEPTHS[-1], DEPTHS[0]))
    if not all((pre, post, none, cold_pre, cold_post, bare, shallow)):
        return []
    gain = difference(pre, bare)
    of_post, of_pre = difference(post, cold_post), difference(pre, cold_pre)
    return [
        {
            "sentence": "Deep transformers need residual connections",
            "source": "Dong et al. 2021; He et al. 2016 for convolutions",
            "measured": f"{DEPTHS[-1]} pre-norm blocks, with minus without: {points(gain)}",
            "control": f"{DEPTHS[0]} blocks without: {percent(shallow)}; {DEPTHS[-1]} blocks with them and without "
            f"norms: {percent(none)}",
            "answer": answer(gain),
        },
        {
            "sentence": "Norms after the sums need a warm-up of the learning rate",
            "source": "Xiong et al. 2020",
            "measured": f"{DEPTHS[-1]} post-norm blocks, warm-up of {WARMUP} steps minus none: {points(of_post)}",
            "control": f"the same of pre-norm blocks: {points(of_pre)}",
            "answer": answer(of_post),
        },
        {
            "sentence": f"Norms before the branches need no warm-up (it adds at most {100 * LITTLE:g} point)",
            "source": "Xiong et al. 2020",
            "measured": f"{DEPTHS[-1]} pre-norm blocks, warm-up of {WARMUP} steps minus none: {points(of_pre)}",
            "control": f"the same of post-norm blocks: {points(of_post)}",
            "answer": HOLDS if of_pre[2] <= LITTLE else FAILS if of_pre[1] > LITTLE else OPEN,
        },
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each wiring by depth, with and without a warm-up, and how gradients fade."""
    lines = []
    for name in WIRINGS:
        line = {"norm": name}
        for depth in DEPTHS:
            for warmup in ("", ", warm-up"):
                line[f"depth {depth}{warmup}"] = percent(
                    of_setting(cells, f"{name}, depth {depth}{warmup}", "accuracy")
                )
        norms = of_setting(cells, f"{name}, depth {DEPTHS[-1]}", "gradient_norms")
        fading = statistics.geometric_mean([of[0] / of[-1] for of in norms]) if norms else None
        line[f"gradient of block 1 over {DEPTHS[-1]}"] = "" if fading is None else f"{fading:.2g}"
        lines.append(line)
    note = (
        f"Test accuracy on the digits after {STEPS} steps of 64 images, mean and 95 % interval over seeds. Gradients "
    )
    return f"{markdown_table(lines)}\n\n{note}are those of the first batch, before training."
