"""How well the packaged model tells images of its ten classes from others: four scores, and the thresholds of the best.

The known images are test images of CIFAR-10. The others are made here, 32 x 32 pixels each:

- places and flowers: parts of the two photographs of scikit-learn, of random place and size;
- digits: scikit-learn's handwritten digits, enlarged;
- textures: stripes, checks and blots of random colours;
- scrambled images: test images of which the 16 squares are shuffled;
- noise: random pixels, and random pixels that are smoothed.

A score is higher for images that the model knows: the probability of the predicted class, its logit, the energy (the
log of the sum of the exponentials of all logits; Liu et al. 2020), and minus the distance of the features to the
nearest class mean of training images (Mahalanobis; Lee et al. 2018). The threshold is the score that all but 1 % or 5 %
of the test images exceed; an image below it is caught.

    python benchmarks/familiarity.py --data data/cifar10-jpeg [--images 5000] [--output benchmarks/results]
        [--thresholds vit/weights/cifar10.familiar.json]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import einsum, rearrange, reduce, repeat
from explanations import photographs
from PIL import Image
from records import command_line, made_at, origin, write_json, write_results
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_auroc

import vit
from vit.data.normalise import normalise
from vit.explain.familiarity import ALARMS, energy, fingerprint_of
from vit.support.markdown import markdown_table

SEED, SIDE, BATCH = 0, 32, 64
TRAINING_IMAGES = 2_000  # of which the class means are
PERCENTS = [*range(1, 100)]  # of test images
PHOTOGRAPHS = "places and flowers"


class Seen(NamedTuple):
    """Logits and features of images, (B, classes) and (B, channels)."""

    logits: Tensor
    features: Tensor


@torch.inference_mode()
def see(model: vit.VisionTransformer, images: Tensor) -> Seen:
    """Return what a model makes of normalised images."""
    features = torch.cat(
        [model.forward_head(model.forward_features(batch), pre_logits=True) for batch in images.split(BATCH)]
    )
    return Seen(model.head(features), features)


def other_images(known: Tensor, count: int) -> dict[str, Tensor]:
    """Return images of other kinds by name, uint8 (count, 3, 32, 32); the known ones, uint8 likewise, are scrambled."""
    rng = np.random.default_rng(SEED)
    digits = torch.from_numpy(load_digits().images[rng.permutation(1797)[:count]]).float() / 16
    squares = rearrange(known[:count], "b c (r p) (s q) -> b (r s) c p q", p=8, q=8)
    orders = torch.from_numpy(rng.permuted(np.tile(np.arange(16), (len(squares), 1)), axis=1))
    shuffled = squares[torch.arange(len(squares))[:, None], orders]
    noise = torch.from_numpy(rng.random((count, 3, SIDE, SIDE), dtype=np.float32))
    noise[::2] = _stretch(F.avg_pool2d(F.pad(noise[::2], (3, 3, 3, 3), mode="reflect"), 7, stride=1))
    return {
        PHOTOGRAPHS: torch.stack([_part(rng, number % 2) for number in range(count)]),
        "digits": _bytes(repeat(F.interpolate(digits[:, None], SIDE, mode="bicubic"), "b 1 h w -> b c h w", c=3)),
        "textures": torch.stack([_texture(rng) for _ in range(count)]),
        "scrambled images": rearrange(shuffled, "b (r s) c p q -> b c (r p) (s q)", r=4),
        "noise": _bytes(noise),
    }


def _part(rng: np.random.Generator, number: int) -> Tensor:
    """Return a square part of one of two photographs, as the model sees it: uint8 (3, 32, 32)."""
    photograph = Image.fromarray(load_sample_images().images[number])
    side = int(rng.integers(80, 427))
    left, top = (int(rng.integers(whole - side + 1)) for whole in photograph.size)
    part = photograph.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return torch.from_numpy(rearrange(np.array(part), "h w c -> c h w"))


def _texture(rng: np.random.Generator) -> Tensor:
    """Return stripes, checks or blots of two colours: uint8 (3, 32, 32)."""
    down, across = np.mgrid[:SIDE, :SIDE]
    turn, period, phase = rng.uniform(0, np.pi), rng.uniform(3, 16), rng.uniform(0, 2 * np.pi)
    first = np.sin(2 * np.pi * (across * np.cos(turn) + down * np.sin(turn)) / period + phase)
    second = np.sin(2 * np.pi * (down * np.cos(turn) - across * np.sin(turn)) / period)
    pattern = [first, np.sign(first * second), first + second][rng.integers(3)]
    share = torch.from_numpy((pattern - pattern.min()) / (pattern.max() - pattern.min())).float()
    light, dark = torch.from_numpy(rng.random((2, 3, 1, 1), dtype=np.float32))
    return _bytes(light * share + dark * (1 - share))


def _stretch(images: Tensor) -> Tensor:
    low, high = (reduce(images, "b c h w -> b 1 1 1", how) for how in ("min", "max"))
    return (images - low) / (high - low)


def _bytes(images: Tensor) -> Tensor:
    return (255 * images.clamp(0, 1)).round().to(torch.uint8)


def scores_of(training: Seen, labels: Tensor) -> dict[str, Callable[[Seen], Tensor]]:
    """Return the scores by name; the distance is that to the class means of training images."""
    means = torch.stack([training.features[labels == k].mean(dim=0) for k in range(training.logits.shape[1])])
    inverse = torch.linalg.pinv((training.features - means[labels]).T.double().cov())

    def nearest(seen: Seen) -> Tensor:
        off = rearrange(seen.features, "b d -> b 1 d").double() - means.double()
        return -einsum(off, inverse, off, "b k d, d e, b k e -> b k").amin(dim=1)

    return {
        "probability": lambda seen: seen.logits.softmax(dim=1).amax(dim=1),
        "largest logit": lambda seen: seen.logits.amax(dim=1),
        "energy": lambda seen: energy(seen.logits),
        "distance of features": nearest,
    }


def measure(model: vit.VisionTransformer, data: Path, count: int) -> dict[str, Any]:
    """Return the test's quantiles of each score, and how many images of each kind are caught."""
    known, _ = photographs(data / "test", count, model)
    training, labels = photographs(data / "train", TRAINING_IMAGES, model)
    settings = model.pretrained_cfg
    means, stds = (rearrange(torch.tensor(settings[name]), "c -> c 1 1") for name in ("mean", "std"))
    others = other_images(_bytes(known * stds + means), max(1, count // 10))
    seen = see(model, known)
    unlike = {kind: see(model, normalise(images, settings)) for kind, images in others.items()}
    rows = {}
    for name, score in scores_of(see(model, training), labels).items():
        own, theirs = score(seen).double(), {kind: score(each).double() for kind, each in unlike.items()}
        quantiles = own.quantile(torch.tensor(PERCENTS).double() / 100).tolist()
        rows[name] = {
            "quantiles": quantiles,
            "caught": {
                str(percent): {
                    kind: (each < quantiles[percent - 1]).double().mean().item() for kind, each in theirs.items()
                }
                for percent in ALARMS
            },
            "area": {kind: _area(own, each) for kind, each in theirs.items()},
        }
    return {"images": len(known), "others": len(others["digits"]), "scores": rows}


def _area(known: Tensor, others: Tensor) -> float:
    """Return the area under the ROC curve: 1 if every known image scores higher than every other one."""
    values = torch.cat([known, others])
    ranks = values.argsort().argsort().double() / len(values)  # as scores may be huge, and torchmetrics expects [0, 1]
    return binary_auroc(ranks, torch.cat([torch.ones(len(known)), torch.zeros(len(others))]).long()).item()


def thresholds(results: dict[str, Any], model: vit.VisionTransformer) -> dict[str, Any]:
    """Return what ``vit.explain.familiarity`` reads: the energy of test images, and the shares that are caught."""
    row = results["scores"]["energy"]
    count = sum(each.numel() for each in model.parameters())
    facts = {"weights": fingerprint_of(model), "parameters": count, "images": results["images"], "percents": PERCENTS}
    return facts | {"energies": row["quantiles"], "caught": row["caught"], "made": results["made"]}


def report(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    kinds = [*results["scores"]["energy"]["area"]]
    rows = []
    for name, row in results["scores"].items():
        for percent in ALARMS:
            caught = row["caught"][str(percent)]
            cells = {kind: f"{100 * caught[kind]:.0f} %" for kind in kinds}
            rows.append({"score": name, "test images that are warned of": f"{percent} %"} | cells)
        areas = {kind: f"{row['area'][kind]:.2f}" for kind in kinds}
        rows.append({"score": name, "test images that are warned of": "area under the curve"} | areas)
    head = (
        "# Images that the packaged model does not know\n\nThe share of images of each kind that a score catches, at "
        "the threshold that warns of so many test images, and the area under the ROC curve (0.5 is chance). "
        f"{results['images']:,} test images, {results['others']:,} of each other kind; seed {SEED}."
    )
    return f"{head}\n\n{markdown_table(rows, right={*kinds})}\n\n{made_at(results['made'])}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    parser.add_argument("--images", type=int, default=5_000, help="test images, a random sample of them")
    parser.add_argument("--thresholds", type=Path, help="also write what the package reads to this file")
    options = parser.parse_args(arguments)
    model = vit.load("cifar10")
    results = {"made": origin()} | measure(model, options.data, options.images)
    path = options.output / "familiarity.json"
    write_results(path, results, report)
    if options.thresholds:
        write_json(options.thresholds, thresholds(results, model))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
