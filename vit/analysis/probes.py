"""Linear probes: what can be read from the tokens of each layer, and from the output of each head.

Letters in the einops patterns: b batch, n patches, t channels of a token, h heads, d channels per head, c image
channels, y x rows and columns of patches, p q rows and columns of pixels in a patch.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from einops import pack, rearrange, reduce
from torch import Tensor, nn

from vit.analysis.batches import in_batches, labelled_batches
from vit.analysis.modules import attention_modules, emptied_layers, head_count, output_projection
from vit.capture.anatomy import Anatomy, examine
from vit.capture.parts.footprint import check_even
from vit.capture.parts.token_places import Boundary
from vit.support.precision import at_least_float32

PROBED = 8  # patches per image whose colour and position are read
PENALTIES = (1.0, 10.0, 100.0, 1000.0, 10000.0)  # of ridge regression; cross-validation chooses one


@dataclass(frozen=True)
class Probe:
    """What linear probes read from images that they were not fitted on.

    Attributes:
        class_accuracy: Share of images whose class is read correctly from the mean of their patches.
        colour: Share of the variance of the patches' mean colour that is read from the patch tokens (R squared).
        position: Share of the variance of the patches' row and column that is read from the tokens (R squared).
    """

    class_accuracy: float
    colour: float
    position: float


@dataclass(frozen=True)
class Probes:
    """The probes of a model.

    Attributes:
        layers: First the probe of the tokens that enter the first layer, then of the tokens after each layer.
        heads: For each layer, the probes of each head's output before the output projection. Empty if the model does
            not call its output projections as modules.
    """

    layers: list[Probe]
    heads: list[list[Probe]]


class _Features(NamedTuple):
    mean: Tensor  # mean over the patches of an image, (B, T)
    patches: Tensor  # the probed patches, (B, n, T)


class _Targets(NamedTuple):
    labels: Tensor  # (B,)
    colours: Tensor  # (B, n, C)
    places: Tensor  # row and column, (B, n, 2)


def probe_layers(
    model: nn.Module, fitted_on: tuple[Tensor, Tensor], measured_on: tuple[Tensor, Tensor], *, batch_size: int = 64
) -> Probes:
    """Fit linear probes for the class, the mean colour and the position of patches, and measure them on other images.

    A probe also reads what passes through the model unchanged. So compare it with the probe of an untrained model
    (Hewitt and Liang 2019). Probes are ridge regressions on standardised features.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> images, labels = torch.randn(10, 3, 32, 32), torch.arange(10) % 2
    >>> probes = probe_layers(model, (images, labels), (images, labels))
    >>> len(probes.layers), [len(heads) for heads in probes.heads]
    (3, [3, 3])

    Args:
        model: A ViT of any library, in eval mode.
        fitted_on: Images (B, C, H, W), normalised as the model expects, and their classes (B,).
        measured_on: Other images and their classes, in the same form.
        batch_size: Number of images in one forward pass.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), no module for each layer takes its
            tokens, no norm follows the last layer, or a layer has lost all heads.
    """
    if emptied := emptied_layers(model):
        raise ValueError(f"layer {emptied[0]} has no heads left: probe the model before pruning, or leave it a head")
    for part in (fitted_on, measured_on):
        labelled_batches(model, *part, batch_size)  # checks them
    anatomy = examine(model, next(in_batches(model, fitted_on[0], 1)))
    anatomy.check_in_order()
    check_even(anatomy.cells, anatomy.grid, type(model).__name__)
    if not anatomy.parts.layers or anatomy.parts.last is None:
        raise ValueError(
            f"{type(model).__name__} has no module for each layer that takes its tokens (B, N, D), or no norm after "
            "the last layer: probes need both"
        )
    fitted, fitted_targets = _seen(model, anatomy, *fitted_on, batch_size)
    measured, measured_targets = _seen(model, anatomy, *measured_on, batch_size)
    probes = [_probe(*pair, fitted_targets, measured_targets) for pair in zip(fitted, measured, strict=True)]
    count = len(anatomy.parts.layers) + 1
    of_heads = iter(probes[count:])
    return Probes(probes[:count], [[next(of_heads) for _ in range(head_count(a))] for a in _separate(model)])


def _separate(model: nn.Module) -> list[nn.Module]:
    """Return the attention of each layer. The list is empty if the outputs of the heads cannot be read."""
    try:
        modules = attention_modules(model)
    except ValueError:
        return []
    return [] if any(output_projection(attention) is None for attention in modules) else modules


@torch.no_grad()
def _seen(
    model: nn.Module, anatomy: Anatomy, images: Tensor, labels: Tensor, batch_size: int
) -> tuple[list[_Features], _Targets]:
    """Return the features of each layer, then of each head, and the targets that are read from them."""
    rows, columns = anatomy.grid
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(rows * columns, generator=generator)[:PROBED] for _ in images])
    modules = _separate(model)
    places = [*anatomy.parts.layers, anatomy.parts.last]
    places += [Boundary(output_projection(attention), "input") for attention in modules]
    seen: dict[int, Tensor] = {}

    def keep(number: int, tokens: Tensor) -> None:
        seen[number] = at_least_float32(tokens[:, anatomy.patches]).cpu()

    batches = []
    with ExitStack() as stack:
        for number, place in enumerate(places):
            stack.enter_context(place.seen(partial(keep, number)))
        for batch, picks in zip(in_batches(model, images, batch_size), chosen.split(batch_size), strict=True):
            model(batch)
            tokens = [seen[number] for number in range(len(places))]
            batches.append([_Features(reduce(x, "b n t -> b t", "mean"), _picked(x, picks)) for x in tokens])
    features = [_Features(*map(torch.cat, zip(*of_place, strict=True))) for of_place in zip(*batches, strict=True)]
    count = len(features) - len(modules)
    for attention, joint in zip(modules, features[count:], strict=True):
        features += _split(joint, head_count(attention))
    colours = reduce(at_least_float32(images), "b c (y p) (x q) -> b (y x) c", "mean", y=rows, x=columns).cpu()
    own_place = torch.stack([chosen // columns, chosen % columns], dim=-1).float()
    return features[:count] + features[count + len(modules) :], _Targets(labels, _picked(colours, chosen), own_place)


def _picked(tokens: Tensor, chosen: Tensor) -> Tensor:
    """Take the chosen patches of each image: (B, N, T), (B, n) -> (B, n, T)."""
    return tokens[rearrange(torch.arange(len(tokens)), "b -> b 1"), chosen]


def _split(joint: _Features, heads: int) -> list[_Features]:
    means = rearrange(joint.mean, "b (h d) -> h b d", h=heads)
    patches = rearrange(joint.patches, "b n (h d) -> h b n d", h=heads)
    return [_Features(*of_head) for of_head in zip(means, patches, strict=True)]


def _probe(fitted: _Features, measured: _Features, targets: _Targets, expected: _Targets) -> Probe:
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def variance_read(name: str) -> float:
        regression = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
        regression.fit(_rows(fitted.patches), _rows(getattr(targets, name)))
        return _r_squared(regression.predict(_rows(measured.patches)), _rows(getattr(expected, name)))

    classifier = make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES))
    classifier.fit(fitted.mean.numpy(), targets.labels.numpy())
    right = classifier.predict(measured.mean.numpy()) == expected.labels.numpy()
    return Probe(float(right.mean()), variance_read("colours"), variance_read("places"))


def _rows(patches: Tensor):
    return rearrange(patches, "b n t -> (b n) t").numpy()


def _r_squared(predicted, expected) -> float:
    """Return the share of the variance that a prediction explains. The variance is summed over all columns."""
    spread = ((expected - expected.mean(axis=0)) ** 2).sum()
    columns, _ = pack([predicted], "n *")  # scikit-learn returns one axis for a single column
    return float(1 - ((expected - columns) ** 2).sum() / spread) if spread else 0.0
