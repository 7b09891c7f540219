"""Claims about what the heads of a trained model relate, on digits in clutter whose place is known.

Letters in the einops patterns: b images, h heads, n m patches or tokens, d channels of a head.
"""

import itertools
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import answer, difference, fit, is_right, mean_with_interval, normalised, of_setting, percent
from einops import einsum, rearrange
from torch import Tensor

import vit
from vit.analysis import rare_attention
from vit.data import Digits
from vit.data.planted import PlantedDigits, planted_digits
from vit.explain import capture_attention
from vit.support.markdown import markdown_table

STEPS, LR, WARMUP = 1500, 3e-3, 150
MODEL = {"image_size": 32, "patch_size": 4, "in_channels": 1, "embed_dim": 64, "depth": 4, "num_heads": 4}
SETTINGS: dict[str, dict[str, Any]] = {"digits in clutter": {"mlp_ratio": 2.0}}
SEEN = 200  # test images, of which one half chooses the strongest head, and the other half says how strong it is
RIDGE = 1e-3  # of the mean square of the heads' outputs
WHEN = ("before", "after")  # the training
PLACES = ("object", "another place", "clutter")
TOUCHING = ("one of four that touch", "across two of them")
# First row, first column, height and width of four digits that touch, and of as large places across two of them.
OF_ONE = ((8, 8, 8, 8), (8, 16, 8, 8), (16, 8, 8, 8), (16, 16, 8, 8))
ACROSS = ((8, 12, 8, 8), (16, 12, 8, 8), (12, 8, 8, 8), (12, 16, 8, 8))


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model. Return its test accuracy, and what its heads relate before and after the training."""
    torch.manual_seed(seed)
    model = vit.VisionTransformer(**MODEL, **setting)
    (images, labels, _), (tested, truth, boxes) = planted_digits("train"), planted_digits("test")
    seen = normalised(PlantedDigits, tested[:SEEN])
    touching = normalised(PlantedDigits, mosaics()[:SEEN])
    before = related(model.eval(), seen, boxes[:SEEN], touching)
    fit(model, normalised(PlantedDigits, images), labels, steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    accuracy = is_right(model, normalised(PlantedDigits, tested), truth).double().mean().item()
    return {"accuracy": accuracy, "before": before, "after": related(model, seen, boxes[:SEEN], touching)}


@torch.no_grad()
def related(model: vit.VisionTransformer, images: Tensor, boxes: Tensor, touching: Tensor) -> dict[str, Any]:
    """Return what the heads relate: parts of a digit, rare patches, and how much of a token they keep."""
    of_clutter = of_strongest(*parts_of_one_object(model, images, boxes))
    of_mosaics = of_strongest(*parts_of_touching_objects(model, touching))
    rare, of_others = (torch.cat(layers).mean().item() for layers in rare_attention(model, images))
    found = dict(zip((*PLACES, *TOUCHING), (*of_clutter, *of_mosaics), strict=True))
    return found | {"rare": rare, "rare in others": of_others} | kept(model, images)


def of_strongest(own: Tensor, *controls: Tensor) -> list[float]:
    """Return the share and the controls, (B, heads) each, of the head whose share is most above the controls.

    One half of the images chooses the head, and the means are those of the other half.
    """
    half = len(own) // 2
    head = (own - torch.stack(controls).amax(dim=0))[:half].mean(dim=0).argmax()
    return [shares[half:, head].mean().item() for shares in (own, *controls)]


def mosaics() -> Tensor:
    """Return images with four test digits that touch, in the middle: bytes (N, 1, 32, 32)."""
    data = Digits()
    data.setup("test")
    digits = data.sets["test"].images
    digits = digits[: len(digits) // 4 * 4]
    middle = rearrange(digits, "(b y x) 1 h w -> b 1 (y h) (x w)", y=2, x=2)
    border = (MODEL["image_size"] - middle.shape[-1]) // 2
    return F.pad(middle, (border,) * 4)


def parts_of_one_object(model: vit.VisionTransformer, images: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many times an even share the patches of a digit attend to its other patches, and two controls.

    Each is (B, heads). The first control is the same attention at the place of the digit of the next image: a head that
    always looks at neighbours has the same number there. The second is what the patches of the digit attend to patches
    of the clutter: a head that looks at ink has the same number there.
    """
    others, inside = to_other_patches(model, images), cells_of(boxes)
    elsewhere = inside.roll(1, dims=0)
    pairs = (inside, inside), (elsewhere, elsewhere), (inside, inked(images) & ~inside)
    return tuple(share_of(others, first, last) for first, last in pairs)


def parts_of_touching_objects(model: vit.VisionTransformer, touching: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many times an even share the patches of a digit attend to its other patches, and a control.

    Each is (B, heads), a mean over the four digits of a mosaic. The control is the same attention within four patches
    that belong to two digits: a head that looks at neighbours, or at ink, has the same number there.
    """
    others = to_other_patches(model, touching)
    own, across = (
        torch.stack([share_of(others, cells, cells) for cells in cells_of(torch.tensor(places)).split(1)]).mean(dim=0)
        for places in (OF_ONE, ACROSS)
    )
    return own, across


def to_other_patches(model: vit.VisionTransformer, images: Tensor) -> Tensor:
    """Return the attention of the patches to the other patches, whose sum is one: (B, heads of all layers, N, N)."""
    patches = rearrange(torch.stack(capture_attention(model, images), dim=1), "b l h n m -> b (l h) n m")[..., 1:, 1:]
    others = patches * (1 - torch.eye(patches.shape[-1]))
    return others / others.sum(dim=-1, keepdim=True)


def share_of(others: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the attention of some patches to others over an even share: (B, H, N, N), twice (B, N) -> (B, H).

    The two sets of patches are the same, or have none in common.
    """
    first, last = (cells.expand(len(others), -1) for cells in (first, last))
    attended = einsum(others, first.float(), last.float(), "b h n m, b n, b m -> b h")
    targets = last.sum(dim=1) - (first & last).any(dim=1).long()
    even = first.sum(dim=1) * targets / (first.shape[1] - 1)
    return attended / rearrange(even, "b -> b 1")


def inked(images: Tensor) -> Tensor:
    """Return which patches are not empty: (B, C, H, W) -> booleans (B, N)."""
    patch = MODEL["patch_size"]
    pixels = rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=patch, q=patch)
    return pixels.amax(dim=-1) > pixels.amin(dim=-1)


def cells_of(boxes: Tensor) -> Tensor:
    """Return which patches a digit covers: first row, first column, height, width (B, 4) -> booleans (B, N)."""
    side, patch = MODEL["image_size"] // MODEL["patch_size"], MODEL["patch_size"]
    starts = torch.arange(side) * patch
    top, left, height, width = rearrange(boxes, "b four -> four b 1")
    rows, columns = ((starts >= first) & (starts < first + size) for first, size in ((top, height), (left, width)))
    return rearrange(rearrange(rows, "b n -> b n 1") & rearrange(columns, "b m -> b 1 m"), "b n m -> b (n m)")


def kept(model: vit.VisionTransformer, images: Tensor) -> dict[str, list[float]]:
    """Return how well tokens can be rebuilt from 1, 2, ... heads of the last block; the control has no heads.

    A linear map rebuilds the tokens that enter attention. It is fitted on one half of the images; on the other half,
    the share of the tokens' variance that it explains is a mean over all choices of so many heads. The control rebuilds
    the tokens from a random projection of themselves to as many numbers.
    """
    attn = model.blocks[-1].attn
    entering: list[Tensor] = []
    with attn.register_forward_pre_hook(lambda module, inputs: entering.append(inputs[0])):
        model(images)
    (tokens,) = entering
    outputs = attn.mechanism(*attn.heads(tokens))
    random = torch.randn(tokens.shape[-1], tokens.shape[-1], generator=torch.Generator().manual_seed(0))
    projected = rearrange(tokens @ random, "b n (h d) -> b h n d", h=attn.num_heads)
    counts = range(1, attn.num_heads + 1)
    return {
        name: [
            statistics.mean(explained(heads, tokens, chosen) for chosen in choices(attn.num_heads, k)) for k in counts
        ]
        for name, heads in (("kept", outputs), ("kept by chance", projected))
    }


def choices(heads: int, count: int) -> list[tuple[int, ...]]:
    """Return all choices of some heads.

    >>> choices(3, 2)
    [(0, 1), (0, 2), (1, 2)]
    """
    return [*itertools.combinations(range(heads), count)]


def explained(outputs: Tensor, tokens: Tensor, chosen: tuple[int, ...]) -> float:
    """Return the share of the variance of tokens (B, N, D) that a linear map of heads (B, H, N, d) explains."""
    taken = rearrange(outputs[:, list(chosen)], "b h n d -> b n (h d)").double()
    half = len(tokens) // 2
    (fitted, unseen), (targets, truth) = (
        (rearrange(part[:half], "b n d -> (b n) d"), rearrange(part[half:], "b n d -> (b n) d"))
        for part in (taken, tokens.double())
    )
    mean, centre = fitted.mean(dim=0), targets.mean(dim=0)
    squares = (fitted - mean).T @ (fitted - mean)
    ridge = RIDGE * squares.diagonal().mean() * torch.eye(len(squares), dtype=torch.float64)
    weights = torch.linalg.solve(squares + ridge, (fitted - mean).T @ (targets - centre))
    rest = truth - centre - (unseen - mean) @ weights
    return 1 - (rest.square().sum() / (truth - truth.mean(dim=0)).square().sum()).item()


def of_time(cells: dict[str, Any], when: str, key: str) -> list[Any]:
    """Return what was measured before or after the training, of each seed."""
    return [found[key] for setting in SETTINGS for found in of_setting(cells, setting, when)]


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about what heads relate with their answers."""
    if not cells:
        return []
    own, elsewhere, clutter = (of_time(cells, "after", key) for key in PLACES)
    control = list(map(max, elsewhere, clutter))  # of each seed
    touching, across = (of_time(cells, "after", key) for key in TOUCHING)
    rare, of_others, rare_before = (
        of_time(cells, when, key) for when, key in (("after", "rare"), ("after", "rare in others"), ("before", "rare"))
    )
    half = MODEL["num_heads"] // 2 - 1
    few, chance, all_heads = (
        [numbers[place] for numbers in of_time(cells, "after", key)]
        for key, place in (("kept", half), ("kept by chance", half), ("kept", -1))
    )
    compared = (
        {
            "sentence": "Some heads relate the parts of one object",
            "source": "Vaswani et al. 2017, fig. 3, for sentences; Caron et al. 2021 for images",
            "measured": "attention within a digit over an even share, strongest head minus the higher control: ",
            "found": difference(own, control),
            "control": f"the same at another place: {times(elsewhere)}; from the digit to the clutter: "
            f"{times(clutter)}; strongest head before training: {times(of_time(cells, 'before', 'object'))}",
        },
        {
            "sentence": "Some heads tell an object from others that touch it",
            "source": "Caron et al. 2021, fig. 1",
            "measured": "attention within a digit of a mosaic over an even share, strongest head minus the same across "
            "two digits: ",
            "found": difference(touching, across),
            "control": f"within a digit: {times(touching)}; across two: {times(across)}; before training: "
            f"{times(of_time(cells, 'before', TOUCHING[0]))} and {times(of_time(cells, 'before', TOUCHING[1]))}",
        },
        {
            "sentence": "Attention goes to what is rare in an image (here it has ink, too)",
            "source": "Bruce and Tsotsos 2005, of human eyes",
            "measured": "rank correlation of attention with rarity (here rare patches have ink), in this image "
            "minus in another: ",
            "found": difference(rare, of_others),
            "control": f"before training: {correlation(rare_before)}; with the rarity in another image: "
            f"{correlation(of_others)}",
        },
        {
            "sentence": "Half of the heads keep what a token holds",
            "source": "Michel et al. 2019, who remove heads; Bhojanapalli et al. 2020 contradict",
            "measured": "share of variance explained, two of four heads minus a random projection as wide: ",
            "found": difference(few, chance),
            "control": f"two heads: {percent(few)}; the projection: {percent(chance)}; all heads: {percent(all_heads)}",
        },
    )
    return [
        {name: line[name] for name in ("sentence", "source", "control")}
        | {"measured": line["measured"] + "{:+.2f} ({:+.2f} to {:+.2f})".format(*line["found"])}
        | {"answer": answer(line["found"])}
        for line in compared
    ]


def times(values: list[float]) -> str:
    """Return mean and 95 % interval of multiples.

    >>> times([1.0, 2.0, 3.0])
    '2.0 times (-0.5 to 4.5)'
    """
    return mean_with_interval(values, ".1f", " times")


def correlation(values: list[float]) -> str:
    """Return mean and 95 % interval of correlations.

    >>> correlation([0.1, 0.2, 0.3])
    '0.20 (-0.05 to 0.45)'
    """
    return mean_with_interval(values, ".2f")


def table(cells: dict[str, Any]) -> str:
    """Return what the heads relate before and after the training."""
    lines = []
    for when in WHEN:
        line = {"the model": f"{when} training"}
        line |= {key: times(of_time(cells, when, key)) for key in (*PLACES, *TOUCHING)}
        line |= {key: correlation(of_time(cells, when, key)) for key in ("rare", "rare in others")}
        lines.append(line)
    of_numbers = [
        {"heads": str(count)}
        | {
            f"{name}, {when} training": percent([numbers[count - 1] for numbers in of_time(cells, when, key)])
            for when in WHEN
            for name, key in (("variance explained", "kept"), ("by a random projection", "kept by chance"))
        }
        for count in range(1, MODEL["num_heads"] + 1)
    ]
    right = percent([accuracy for setting in SETTINGS for accuracy in of_setting(cells, setting, "accuracy")])
    note = (
        f"Mean and 95 % interval over seeds. {MODEL['embed_dim']} channels, {MODEL['depth']} blocks of "
        f"{MODEL['num_heads']} heads, {STEPS:,} steps of 64 images of digits in clutter; {right} of the test images "
        f"are classified correctly. Measured on {SEEN} of them."
    )
    return f"{markdown_table(lines)}\n\n{markdown_table(of_numbers)}\n\n{note}"
