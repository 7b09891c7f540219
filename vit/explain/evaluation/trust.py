"""A report in plain sentences on how far the maps of a model can be trusted.

Letters in the einops patterns: b batch, h heads, n queries or patches, m keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import combinations
from typing import Any, Literal, get_args

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.capture.outliers import outliers
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.intervals import mean_interval as bootstrap
from vit.explain.evaluation.sanity import other_class, randomised_layers, uniform_attention
from vit.explain.evaluation.similarity import rank_correlation
from vit.explain.maps import CLASS_AGNOSTIC, METHODS, Subject, signed_map
from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.perturbation import can_drop

Level = Literal["green", "amber", "red"]

# Two maps look the same above the first rank correlation, and unrelated up to the second.
SAME, UNRELATED = 0.9, 0.5
# Attention counts as unused below the first share of changed predictions, and as used from the second.
UNUSED, USED = 0.02, 0.10
NOISE = 0.05  # standard deviation of noise that should not matter, in units of the image's own deviation
FEWEST = 10  # images from which a share or a mean is worth a verdict
CONCENTRATION = 3.0  # times their even share of the read-out's attention that is too much for outlier tokens


@dataclass
class Finding:
    """One sentence of a report, with its level and its subject."""

    level: Level
    about: str
    text: str


@dataclass(repr=False)
class TrustReport:
    """Findings on a number of images, printed as lines and as HTML in a notebook."""

    findings: list[Finding]
    images: int

    def __str__(self) -> str:
        width = max(len(finding.about) for finding in self.findings)
        lines = [f"{finding.level:<5}  {finding.about:<{width}}  {finding.text}" for finding in self.findings]
        return "\n".join([*lines, "", self._summary()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        # Shapes besides colours, for readers who see these colours alike.
        marks = {"green": ("#009E73", "&#10003;"), "amber": ("#B8860B", "!"), "red": ("#D55E00", "&#10007;")}
        rows = []
        for finding in self.findings:
            color, mark = marks[finding.level]
            rows.append(
                f'<tr><td style="color:{color};white-space:nowrap"><b>{mark} {finding.level}</b></td>'
                f'<td style="white-space:nowrap;text-align:left"><b>{escape(finding.about)}</b></td>'
                f'<td style="text-align:left">{escape(finding.text)}</td></tr>'
            )
        return f"<table>{''.join(rows)}</table><p>{escape(self._summary())}</p>"

    def _summary(self) -> str:
        counts = ", ".join(f"{sum(f.level == level for f in self.findings)} {level}" for level in get_args(Level))
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return f"{counts}; measured on {images}: fewer than 100 show tendencies only"


def trust_report(
    model: nn.Module,
    images: Tensor,
    methods: Sequence[str] = ("rollout", "relevance", "occlusion"),
    labels: Tensor | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> TrustReport:
    """Report in plain sentences how far the maps of this model on these images can be trusted.

    For each method: whether the map depends on the class, on the weights and on invisible noise, and whether it marks
    the patches that the prediction depends on. For all: whether methods agree, whether attention is used at all, and
    whether much of it lies on tokens that the model uses as memory.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> report = trust_report(model, torch.randn(2, 3, 32, 32), ["rollout"])
    >>> report.findings[0].about, report.findings[0].level
    ('rollout: class', 'red')

    Args:
        model: A ViT classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W); some dozens at least.
        methods: Keys of ``METHODS``.
        labels: Classes of the images, (B,), to report changes of accuracy besides those of predictions.
        grid: Rows and columns of patches; needed if no module of the model has a ``patch_size``.
        num_prefix_tokens: Tokens before the patches; needed if some non-patch tokens follow the patches.

    Raises:
        ValueError: If there is no such method, or attention cannot be captured.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}: choose one of {', '.join(METHODS)}")
    layout = {"grid": grid, "num_prefix_tokens": num_prefix_tokens}
    subject = Subject(model, images, **layout)
    maps = {method: signed_map(method, subject) for method in methods}
    findings = []
    classes = other_class(model, images, methods, **layout)
    weights = randomised_layers(model, images, methods, **layout)
    for method in methods:
        findings.append(_check_class(method, classes[method].mean().item()))
        findings.append(_check_weights(method, [c.mean().item() for c in weights[method].values()]))
        findings.append(_check_noise(method, subject, maps[method]))
        findings.append(_check_faithfulness(method, subject, maps[method]))
    findings += _check_agreement(maps)
    findings += _check_attention(model, images, labels)
    findings.append(_check_outliers(subject))
    return TrustReport(findings, len(images))


def _check_class(method: str, correlation: float) -> Finding:
    about = f"{method}: class"
    if method in CLASS_AGNOSTIC or correlation > SAME:
        why = "by its definition" if method in CLASS_AGNOSTIC else f"rank correlation {correlation:.2f}"
        text = f"{method} does not depend on the class ({why}): do not use it to justify the label"
        return Finding("red", about, text)
    level, depends = ("amber", "depends little") if correlation > UNRELATED else ("green", "depends")
    text = f"the maps for the predicted class and the runner-up have rank correlation {correlation:.2f}"
    return Finding(level, about, f"{text}: the map {depends} on the class")


def _check_weights(method: str, correlations: list[float]) -> Finding:
    about = f"{method}: weights"
    last = correlations[-1]
    text = f"with all layers and the head randomised, the map has rank correlation {last:.2f} with the original one"
    if last > UNRELATED:
        return Finding("red", about, f"{text}: it depends on the image or the architecture, not on the trained weights")
    if correlations[0] > SAME and method not in CLASS_AGNOSTIC:
        return Finding("amber", about, f"{text}, but it hardly changes with a random head ({correlations[0]:.2f})")
    return Finding("green", about, text)


def _check_noise(method: str, subject: Subject, maps: Tensor) -> Finding:
    noise = draw_for_each(subject.images, subject.images.shape[1:], 0, draw=torch.randn)
    target = subject.contrast.argmax(dim=-1)
    noisy = replace(subject, images=subject.images + NOISE * subject.images.std() * noise, target=target)
    correlation = rank_correlation(maps, signed_map(method, noisy)).mean().item()
    level: Level = "green" if correlation > SAME else "amber" if correlation > UNRELATED else "red"
    text = (
        f"with {100 * NOISE:.0f} % of pixel noise the map has rank correlation {correlation:.2f} with the original one"
    )
    return Finding(level, f"{method}: noise", text)


def _check_faithfulness(method: str, subject: Subject, maps: Tensor) -> Finding:
    removal = "token_drop" if can_drop(subject) else "mean_fill"
    areas = []
    for candidate in (maps, signed_map("random", subject)):
        curves = removal_curves(subject, candidate, removal)
        areas.append(curves.insertion - curves.deletion)
    difference = bootstrap(areas[0] - areas[1])
    about, measured = f"{method}: faith", f"removal area above random: {difference.mean:.3f}"
    if len(maps) < FEWEST:
        text = f"too few images to tell whether it marks the patches that the prediction depends on ({measured})"
        return Finding("amber", about, text)
    level: Level = "green" if difference.low > 0 else "red" if difference.high < 0 else "amber"
    verdict = {
        "green": "it marks patches that the prediction depends on",
        "amber": "not distinguishable from a random map on these images",
        "red": "worse than a random map",
    }[level]
    return Finding(level, about, f"{verdict} ({measured}, 95 % interval {difference.low:.3f} to {difference.high:.3f})")


def _check_agreement(maps: dict[str, Tensor]) -> list[Finding]:
    findings = []
    for one, other in combinations(maps, 2):
        correlation = rank_correlation(maps[one], maps[other]).mean().item()
        level: Level = "green" if correlation > UNRELATED else "amber" if correlation > 0.2 else "red"
        words = {"green": "agree", "amber": "agree in part", "red": "disagree"}[level]
        findings.append(Finding(level, "agreement", f"{one} and {other} {words} (rank correlation {correlation:.2f})"))
    return findings


def _check_attention(model: nn.Module, images: Tensor, labels: Tensor | None) -> list[Finding]:
    if len(images) < FEWEST:
        text = "too few images to tell whether predictions change when attention is uniform"
        return [Finding("amber", "attention", text)]
    table = uniform_attention(model, images, labels)
    unused = [r for r in table.rows if r["heads"] == "all" and r["layers"].startswith("0") and r["flips"] < UNUSED]
    singles = [row for row in table.rows if row["heads"] == "all" and row["layers"].isdigit()]
    reported = unused[-1:]
    return [_judge_replacement(row) for row in reported + [row for row in singles if row not in reported]]


def _judge_replacement(row: dict[str, Any]) -> Finding:
    flips = row["flips"]
    level: Level = "red" if flips < UNUSED else "amber" if flips < USED else "green"
    where = f"{'layers' if 'to' in row['layers'] else 'layer'} {row['layers']}"
    text = f"uniform attention in {where} changes {100 * flips:.1f} % of predictions"
    if "accuracy_change" in row:
        text += f" (accuracy {100 * row['accuracy_change']:+.1f} points)"
    meaning = {
        "red": ": predictions hardly depend on it, so a map of it does not explain them",
        "amber": ": few predictions depend on it",
        "green": ": predictions depend on it",
    }
    return Finding(level, "attention", text + meaning[level])


@torch.no_grad()
def _check_outliers(subject: Subject) -> Finding:
    anatomy, shares, norms = subject.anatomy, [], []

    def keep_share(layer: int, attn: Tensor) -> Tensor:
        if layer == anatomy.depth - 1:
            row = einsum(anatomy.readout.to(attn), reduce(attn, "b h n m -> b n m", "mean"), "n, b n m -> b m")
            shares.append(row[:, anatomy.patches])
        return attn

    def keep_norms(tokens: Tensor) -> Tensor:
        norms.append(tokens[:, anatomy.patches].norm(dim=-1))
        return tokens

    if not anatomy.parts.layers:
        return Finding("amber", "outliers", "the layers share one module: the norms of their tokens were not measured")
    with anatomy.parts.layers[-1].changed(keep_norms):
        run_intercepted(subject.model, subject.images, keep_share)
    flat = outliers(rearrange(norms[0], "b n -> (b n)"))  # among the tokens of all images
    marked = rearrange(flat, "(b n) -> b n", b=len(norms[0]))
    share = marked.double().mean().item()
    if not share:
        return Finding("green", "outliers", "no patch token has an outlying norm before the last layer")
    mass = ((shares[0] * marked).sum() / shares[0].sum()).item()
    level: Level = "green" if mass < CONCENTRATION * share else "red"
    text = f"{100 * share:.1f} % of patch tokens have an outlying norm and get {100 * mass:.1f} % of the last attention"
    meaning = ": maps of it show tokens that the model uses as memory" if level == "red" else ""
    return Finding(level, "outliers", text + meaning)
