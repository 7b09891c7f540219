"""Claims about heads that are chosen for each input, on the handwritten digits.

Letters in the einops patterns: n images, k chosen heads, h heads.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import FAILS, HOLDS, OPEN, difference, fit, is_right, normalised, of_setting, percent, points
from einops import reduce
from torch import Tensor, nn

import vit
from vit.analysis import head_importance, prune_heads
from vit.data import Digits
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, BROWN, GREEN, GREY, ORANGE

STEPS, LR, WARMUP = 300, 3e-3, 50
HEADS = 8
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "embed_dim": 32, "num_heads": HEADS, "depth": 2}
MODEL |= {"mlp_ratio": 2.0}
PRUNED = "pruned half-way"
COLORS = {"by image": BLUE, "by token": BROWN, "at random": ORANGE, "the same for all": GREY, PRUNED: GREEN}
KEPT = (1, 2, 4)
FEW, HALF = 2, HEADS // 2  # heads that the two sentences are about
AS_GOOD = -0.01  # difference of accuracies from which heads do as well
ALL = "all heads"
SETTINGS: dict[str, dict[str, Any]] = {ALL: {}} | {
    f"{way}, {k} of {HEADS}": {"way": way, "k": k} for way in COLORS for k in KEPT
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model. Return its test accuracy, and the share of the test images of each class that use each head."""
    torch.manual_seed(seed)
    data = Digits()
    data.setup("fit")
    train, test = data.sets["train"], data.sets["test"]
    seen, images = normalised(data, train.images), normalised(data, test.images)
    is_pruned = setting.get("way") == PRUNED
    model = build() if is_pruned else build(**setting)
    steps = STEPS // 2 if is_pruned else STEPS
    fit(model, seen, train.labels, steps=steps, lr=LR, warmup=WARMUP, seed=seed)
    if is_pruned:
        model = with_most_important(model, setting["k"], seen, train.labels)
        fit(model, seen, train.labels, steps=STEPS - steps, lr=LR, warmup=WARMUP, seed=seed + 1)
    accuracy = is_right(model, images, test.labels).double().mean().item()
    has_router = setting and not is_pruned
    return {"accuracy": accuracy, "use": uses(model, images, test.labels) if has_router else None}


def with_most_important(model: vit.VisionTransformer, k: int, images: Tensor, labels: Tensor) -> nn.Module:
    """Return a model without all but the k heads of each block that the loss of the training images depends on most."""
    importance = head_importance(model.eval(), images, labels)
    return prune_heads(model, {layer: found.argsort()[:-k].tolist() for layer, found in enumerate(importance)})


def build(way: str | None = None, k: int = HEADS) -> vit.VisionTransformer:
    """Return an untrained model whose heads are chosen in a way; all heads unless one is given.

    Heads at random are drawn anew for each image and call. Both controls have gates of one.
    """
    if way is None:
        return vit.VisionTransformer(**MODEL)
    by = "token" if way == "by token" else "image"
    model = vit.VisionTransformer(**MODEL, attention="routed", attention_kwargs={"k": k, "by": by})
    control = {"at random": torch.rand, "the same for all": torch.zeros}.get(way)
    for block in model.blocks if control else ():
        block.attn.mechanism.route = partial(best, k, control)
    return model


def best(k: int, draw: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the k heads of each image with the largest of drawn numbers, and gates of one: (N, T, D) -> (N, k)."""
    heads = draw(len(tokens), HEADS).argsort(dim=1, descending=True, stable=True)[:, :k]
    return heads, torch.ones(heads.shape)


@torch.no_grad()
def uses(model: vit.VisionTransformer, images: Tensor, labels: Tensor) -> list[list[list[float]]]:
    """Return how often the images (or tokens) of each class use each head of each block: [block][class][head]."""
    chosen = []

    def keep(attention: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        chosen.append(attention.mechanism.route(inputs[0])[0])

    hooks = [block.attn.register_forward_pre_hook(keep) for block in model.blocks]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
    each = [reduce(F.one_hot(heads, HEADS).double(), "n ... k h -> n ... h", "sum") for heads in chosen]
    each = [reduce(used, "n ... h -> n h", "mean") for used in each]
    return [[used[labels == label].mean(dim=0).tolist() for label in range(Digits.num_classes)] for used in each]


def accuracies(cells: dict[str, Any], way: str, k: int) -> list[float]:
    """Return the accuracy of each seed."""
    return of_setting(cells, f"{way}, {k} of {HEADS}", "accuracy")


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about chosen heads with their answers."""
    of_few = {way: accuracies(cells, way, FEW) for way in COLORS}
    half, whole = accuracies(cells, "by image", HALF), of_setting(cells, ALL, "accuracy")
    half_at_random, half_the_same, half_pruned = (
        accuracies(cells, way, HALF) for way in ("at random", "the same for all", PRUNED)
    )
    if not all((*of_few.values(), half, whole, half_at_random, half_the_same, half_pruned)):
        return []
    over_same, over_random = (difference(of_few["by image"], of_few[way]) for way in ("the same for all", "at random"))
    as_all = difference(half, whole)
    source = {"source": "Jin et al. 2024"}
    return [
        {
            "sentence": "Heads chosen for each image do better than the same heads for all images",
            "measured": f"{FEW} of {HEADS} heads chosen, minus the same {FEW} for all: {points(over_same)}",
            "control": f"minus with {FEW} drawn at random: {points(over_random)}; chosen for each token: "
            f"{percent(of_few['by token'])}; pruned half-way: {percent(of_few[PRUNED])}; all heads: {percent(whole)}",
            "answer": HOLDS if min(over_same[1], over_random[1]) > 0 else FAILS if over_same[2] < 0 else OPEN,
        }
        | source,
        {
            "sentence": "Half of the heads, chosen for each image, do as well as all "
            f"(at most {-100 * AS_GOOD:g} point less)",
            "measured": f"{HALF} of {HEADS} heads chosen, minus all: {points(as_all)}",
            "control": f"{HALF} drawn at random: {percent(half_at_random)}; the same {HALF} for all: "
            f"{percent(half_the_same)}; pruned half-way: {percent(half_pruned)}",
            "answer": HOLDS if as_all[1] > AS_GOOD else FAILS if as_all[2] < AS_GOOD else OPEN,
        }
        | source,
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy by number of heads, and how evenly the heads are used."""
    lines = []
    for way in COLORS:
        line = {"heads are chosen": way}
        for k in KEPT:
            line[f"{k} of {HEADS}"] = percent(accuracies(cells, way, k))
        use = [of for of in of_setting(cells, f"{way}, {FEW} of {HEADS}", "use") if of]
        shares = reduce(torch.tensor(use), "s b c h -> s b h", "mean") if use else torch.empty(0)
        line[f"use of the busiest head, {FEW} of {HEADS}"] = f"{100 * shares.amax(-1).mean():.0f} %" if use else ""
        lines.append(line)
    note = (
        f"Test accuracy, mean and 95 % interval over seeds; all heads: {percent(of_setting(cells, ALL, 'accuracy'))}. "
        f"{STEPS} steps of 64 images. *Pruned half-way*: after half of the steps, only the most important heads of "
        "each block stay (Michel et al. 2019), and train for the other half. The use is the share of the test images "
        f"(or tokens), mean over blocks and seeds; {100 * FEW / HEADS:.0f} % is even."
    )
    return f"{markdown_table(lines)}\n\n{note}"
