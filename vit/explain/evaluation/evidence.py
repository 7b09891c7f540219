"""What the trust report measures: numbers for each image, without a verdict.

Letters in the einops patterns: b batch, h heads, n queries or patches, m keys, r s rows and columns of patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch
from einops import rearrange, reduce
from torch import Tensor

from vit.capture.anatomy import Anatomy
from vit.capture.attention import run_intercepted
from vit.explain.evaluation.adversarial import adversarial_attention
from vit.explain.evaluation.confidence import check_labels, fewest_images
from vit.explain.evaluation.faithfulness import Removal, removal_curves
from vit.explain.evaluation.sanity import Replacement, other_class, permuted, replaced_logits, uniform
from vit.explain.evaluation.shuffled import SEEDS, head_parameters, mean_of_others, shuffled
from vit.explain.evaluation.similarity import is_constant, map_correlation, top_overlap
from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS, Subject, signed_map
from vit.explain.maps.fewer_tokens import can_drop
from vit.explain.maps.noise import draw_for_each
from vit.support.outliers import outliers
from vit.support.precision import at_least_float32, in_double

NOISE = 0.05  # standard deviation of noise that should not matter, relative to that of the images
TOP = 10  # maps are compared on the highest 1/10 of the patches, and on the highest patch
SEARCHED = 16  # images for which adversarial attention is searched: each costs more than a hundred passes
SEARCH_STEPS = 75  # half the default of adversarial_attention; the search gets a little less far
JOINTLY = "all layers jointly"
UNTRAINED, MEAN_MAP = "untrained", "mean map"  # controls that are made from a method itself


@dataclass
class Evidence:
    """Numbers for each image, (B,).

    Attributes:
        images: Number of images.
        patches: Number of patches of each.
        clusters: Number of clusters of images. Their means replace the images in all that follows but ``zero`` and
            ``constant``. None if all images are independent.
        zero: By method, whether its map is zero everywhere.
        constant: By method, whether its map has one value everywhere.
        other_class: By method, the rank correlation of the maps for the predicted class and the runner-up. Methods that
            ignore the class by definition are left out.
        random_head: By method, the absolute rank correlation with the map for a shuffled head, (S, B) for S shuffles.
            The same methods are left out.
        random_weights: By method, the absolute rank correlation with the map for shuffled weights, (S, B).
        noisy: By method, the rank correlation with the map of the image with noise.
        above_control: By method and control, its removal area minus that of the control; (S, B) for the maps of the
            method from S untrained models.
        order: By pair of methods, the rank correlation of their maps.
        top: By pair of methods and number of patches, the share of their highest patches in common.
        flips: By kind of replaced attention ("uniform") and layers ("layer 0 alone"), whether the prediction changes.
        corrected: By the same keys, 1 if the prediction becomes right, -1 if it becomes wrong. Empty without labels.
        divergence: By layers, how far adversarial attention gets from the model's own. Covers some images only.
        not_searched: Why adversarial attention was not searched. Empty if it was.
        outliers: The share of patch tokens with outlying norm, and their share of the last attention, (B, 2). None if
            not measured.
        not_measured: Why outliers were not measured. Empty if they were.
    """

    images: int
    patches: int
    clusters: int | None = field(default=None, kw_only=True)
    zero: dict[str, Tensor] = field(default_factory=dict)
    constant: dict[str, Tensor] = field(default_factory=dict)
    other_class: dict[str, Tensor] = field(default_factory=dict)
    random_head: dict[str, Tensor] = field(default_factory=dict)
    random_weights: dict[str, Tensor] = field(default_factory=dict)
    noisy: dict[str, Tensor] = field(default_factory=dict)
    above_control: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    order: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    top: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    flips: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    corrected: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    divergence: dict[str, Tensor] = field(default_factory=dict)
    not_searched: str = ""
    outliers: Tensor | None = None
    not_measured: str = ""

    @property
    def num_intervals(self) -> int:
        """The number of intervals that verdicts depend on."""
        judged = (self.other_class, self.random_head, self.random_weights, self.noisy, self.above_control)
        judged += (self.order, self.top, self.flips, self.divergence)
        return sum(map(len, judged)) + (self.outliers is not None)

    @property
    def unit(self) -> str:
        """What the numbers are of: "image" or "cluster"."""
        return "image" if self.clusters is None else "cluster"

    @property
    def independent(self) -> int:
        """The number of images, or of clusters of images."""
        return self.images if self.clusters is None else self.clusters

    def of_clusters(self, clusters: Tensor) -> "Evidence":
        """Return the same with the mean of each cluster in place of its images, from the cluster of each image, (B,).

        Images without a number, such as those with constant maps, are left out of the mean.
        """
        judged = ("other_class", "random_head", "random_weights", "noisy", "above_control")
        judged += ("order", "top", "flips", "corrected", "divergence")
        means = {
            name: {key: _means(values, clusters) for key, values in getattr(self, name).items()} for name in judged
        }
        outliers = None if self.outliers is None else _means(self.outliers.mT, clusters).mT
        return replace(self, clusters=len(clusters.unique()), outliers=outliers, **means)


def collect(subject: Subject, methods: Sequence[str], labels: Tensor | None = None) -> Evidence:
    """Measure everything that the trust report judges."""
    labels = check_labels(labels, subject.images)
    maps = {method: signed_map(method, subject) for method in methods}
    evidence = Evidence(len(subject.images), subject.grid[0] * subject.grid[1])
    evidence.other_class = other_class(subject, [method for method in methods if method not in CLASS_AGNOSTIC])
    removal: Removal = "token_drop" if can_drop(subject) else "mean_fill"
    areas = {name: _area(subject, signed_map(name, subject), removal) for name in CONTROLS if name != "uniform"}
    owns = {method: _area(subject, of_method, removal) for method, of_method in maps.items()}
    for method, of_method in maps.items():
        evidence.zero[method] = reduce(of_method != 0, "b r s -> b", "max").logical_not()
        evidence.constant[method] = is_constant(of_method)
        evidence.noisy[method] = map_correlation(of_method, signed_map(method, _with_noise(subject)))
        evidence.above_control |= {(method, control): owns[method] - area for control, area in areas.items()}
        if method not in CONTROLS:
            mean_map = mean_of_others(of_method)
            evidence.above_control[method, MEAN_MAP] = owns[method] - _area(subject, mean_map, removal)
    _shuffle_weights(evidence, subject, maps, owns, removal)
    for one, other in combinations(maps, 2):
        evidence.order[one, other] = map_correlation(maps[one], maps[other])
        for count in sorted({1, max(1, evidence.patches // TOP)}):
            top = top_overlap(maps[one], maps[other], count)
            evidence.top[one, other, count] = torch.where(top.isnan(), top, top > 0.5) if count == 1 else top
    _replace_attention(evidence, subject, labels)
    _search_other_attention(evidence, subject)
    evidence.not_measured = _why_not_measured(subject.anatomy)
    if not evidence.not_measured:
        try:
            evidence.outliers = _outliers(subject)
        except ValueError as error:  # no row of attention leads to the logits, or its weights are negative
            evidence.not_measured = str(error)
    return evidence


def _means(values: Tensor, clusters: Tensor) -> Tensor:
    """Average numbers (..., B) over the images of each cluster that have one: (..., clusters)."""
    values = in_double(values)
    places = clusters[: values.shape[-1]].to(values.device).unique(return_inverse=True)[1]
    has = ~values.isnan()
    sums = values.new_zeros(2, *values.shape[:-1], int(places.max()) + 1)
    total, count = sums.index_add(-1, places, torch.stack([values.nan_to_num(), has.to(values)]))
    return total / count


def _with_noise(subject: Subject) -> Subject:
    noise = draw_for_each(subject.images, subject.images.shape[1:], 0, draw=torch.randn)
    target = subject.contrast.argmax(dim=-1)
    return replace(subject, images=subject.images + NOISE * subject.images.std() * noise, target=target)


def _shuffle_weights(
    evidence: Evidence, subject: Subject, maps: dict[str, Tensor], owns: dict[str, Tensor], removal: Removal
) -> None:
    """Compare maps with those of models with a shuffled head, or with all weights shuffled, and their areas."""
    of_class = [method for method in maps if method not in CLASS_AGNOSTIC]
    head = head_parameters(subject) if of_class else []
    of_head: dict[str, list[Tensor]] = {method: [] for method in of_class if head}
    of_all: dict[str, list[Tensor]] = {method: [] for method in maps}
    areas: dict[str, list[Tensor]] = {method: [] for method in maps if method not in CONTROLS}
    for seed in range(SEEDS):
        other_head, untrained = shuffled(subject, seed, head) if of_head else None, shuffled(subject, seed)
        for method, trained in maps.items():
            map_of_untrained = signed_map(method, untrained)
            of_all[method].append(map_correlation(trained, map_of_untrained).abs())
            if method in of_head:
                of_head[method].append(map_correlation(trained, signed_map(method, other_head)).abs())
            if method in areas:
                areas[method].append(_area(subject, map_of_untrained, removal))
    evidence.random_head = {method: torch.stack(found) for method, found in of_head.items()}
    evidence.random_weights = {method: torch.stack(found) for method, found in of_all.items()}
    for method, found in areas.items():
        evidence.above_control[method, UNTRAINED] = owns[method] - torch.stack(found)


def _area(subject: Subject, maps: Tensor, removal: Removal) -> Tensor:
    """Return the area between the removal curves of maps: (B, rows, columns) -> (B,)."""
    return removal_curves(subject, maps, removal).area_between


def _replace_attention(evidence: Evidence, subject: Subject, labels: Tensor | None) -> None:
    depth = _num_attentions(subject)
    replacements: list[tuple[str, str, Replacement, Sequence[int]]] = [
        ("uniform", JOINTLY, uniform, range(depth)),
        ("permuted", JOINTLY, permuted(subject.images), range(depth)),
    ]
    if depth > 1:
        replacements += [("uniform", f"layer {layer} alone", uniform, [layer]) for layer in range(depth)]
    predicted = subject.logits.argmax(dim=-1)
    for kind, where, replacement, layers in replacements:
        calls = subject.anatomy.calls
        changed = replaced_logits(subject.model, subject.images, replacement, layers, calls).argmax(dim=-1)
        evidence.flips[kind, where] = changed != predicted
        if labels is not None:
            right = labels.to(predicted.device)
            evidence.corrected[kind, where] = in_double(changed == right) - in_double(predicted == right)


def _num_attentions(subject: Subject) -> int:
    return subject.anatomy.depth + subject.anatomy.pooled


def _search_other_attention(evidence: Evidence, subject: Subject) -> None:
    last, fewest = _num_attentions(subject) - 1, fewest_images(0.95)
    layout = {"grid": subject.grid, "num_prefix_tokens": subject.num_prefix_tokens}
    if evidence.images < fewest:
        evidence.not_searched = f"it takes more than a hundred passes, and fewer than {fewest} images give no verdict"
        return
    try:
        for where, layers in ((JOINTLY, None), *([(f"layer {last} alone", [last])] if last else [])):
            some = subject.images[:SEARCHED]
            found = adversarial_attention(subject.model, some, layers, steps=SEARCH_STEPS, **layout)
            evidence.divergence[where] = found.divergence
    except ValueError as error:
        evidence.not_searched = str(error)


def _why_not_measured(anatomy: Anatomy) -> str:
    """Return why the norms of tokens cannot be measured, or an empty text."""
    if not anatomy.parts.layers:
        return f"{anatomy.model} has no module for each layer that takes its tokens (B, N, D)"
    return f"{anatomy.model} moves its tokens between its layers" if anatomy.orders else ""


@torch.no_grad()
def _outliers(subject: Subject) -> Tensor:
    anatomy, shares, norms = subject.anatomy, [], []
    _ = subject.readout  # now, as finding it passes images through the model

    def keep_share(layer: int, attn: Tensor) -> Tensor:
        if layer == anatomy.depth - 1:
            if (attn < 0).any():
                raise ValueError(f"the attention of {anatomy.model} has negative weights, which are no shares")
            row = subject.readout_map(reduce(attn, "b h n m -> b n m", "mean"))
            shares.append(rearrange(row, "b r s -> b (r s)"))
        return attn

    with anatomy.parts.layers[-1].seen(
        lambda tokens: norms.append(at_least_float32(tokens[:, anatomy.patches]).norm(dim=-1))
    ):
        run_intercepted(subject.model, subject.images, keep_share, anatomy.calls)
    flat = outliers(rearrange(norms[0], "b n -> (b n)"))  # among the tokens of all images
    marked = in_double(rearrange(flat, "(b n) -> b n", b=len(norms[0])))
    share = shares[0].to(marked.device)
    received = (share * marked).sum(dim=-1) / share.sum(dim=-1)
    return torch.stack([reduce(marked, "b n -> b", "mean"), received], dim=-1)
