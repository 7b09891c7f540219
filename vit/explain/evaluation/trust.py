"""A report in plain sentences on how far the maps of a model can be trusted.

Each sentence compares a confidence interval over the images with a threshold that is named here. If the interval does
not decide, the sentence says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

from torch import Tensor, nn

from vit.explain.evaluation.evidence import JOINTLY, NOISE, Evidence, collect
from vit.explain.evaluation.intervals import Estimate, fewest_images, median_interval, share_interval
from vit.explain.maps import CLASS_AGNOSTIC, check_method

Level = Literal["green", "amber", "red"]

ERROR = 0.05  # probability that any interval of a report misses, split evenly among all of them (Bonferroni, Dunn 1961)
# Rank correlations: above the first, two maps look the same; below the second, they look unrelated.
SAME, UNRELATED = 0.9, 0.5
AGREE = 0.5  # above this rank correlation, or share of the highest patches in common, two methods agree
USED = 0.10  # above this share of changed predictions, attention counts as used
FAR = 0.35  # above this divergence, adversarial attention is far; about half of the largest, ln 2
CONCENTRATION = 3.0  # above this multiple of their even share of the read-out's attention, outlier tokens get too much


@dataclass
class Finding:
    """One sentence of a report, with its level and its subject."""

    level: Level
    about: str
    text: str


@dataclass(repr=False)
class TrustReport:
    """Findings on a number of images, printed as lines and as HTML in a notebook.

    Attributes:
        findings: The sentences.
        images: Number of images.
        intervals: Number of intervals that the findings depend on. All of them hold together.
    """

    findings: list[Finding]
    images: int
    intervals: int

    def __str__(self) -> str:
        width = max(len(finding.about) for finding in self.findings)
        lines = [f"{finding.level:<5}  {finding.about:<{width}}  {finding.text}" for finding in self.findings]
        return "\n".join([*lines, "", self._summary()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        # Marks tell the levels apart even for colour-blind readers.
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
        confidence = 1 - ERROR / self.intervals
        return (
            f"{counts}; measured on {_count(self.images)}. All {self.intervals} intervals together hold with "
            f"{100 * (1 - ERROR):.0f} % confidence, each with {100 * confidence:.2f} % (Bonferroni). Correlations, "
            f"areas and divergences are medians, which have an interval from {_count(fewest_images(confidence))} on"
        )


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

    For each method: does the map depend on the class, on the weights and on invisible noise? Does it mark the patches
    that the prediction depends on? For all methods: do they agree? Do predictions change with uniform or permuted
    attention? How different could attention be at the same predictions? Does much of it lie on tokens that the model
    uses as memory?

    If an interval lies on one side of its threshold, the report gives a verdict. If the images are drawn at random, all
    verdicts of a report are right with a probability of at least 95 %.

    >>> import torch, vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> report = trust_report(model, torch.randn(2, 3, 32, 32), ["rollout"])
    >>> report.findings[0].about, report.findings[0].level
    ('rollout: class', 'red')

    Args:
        model: A ViT classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W). Give a few dozen or more.
        methods: Keys of ``METHODS``.
        labels: Classes of the images, (B,). If given, the report adds the changes of accuracy.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.

    Raises:
        ValueError: If there is no such method, or attention cannot be captured.
    """
    for method in methods:
        check_method(method)
    return judge(collect(model, images, methods, labels, grid=grid, num_prefix_tokens=num_prefix_tokens))


def judge(evidence: Evidence) -> TrustReport:
    """Turn measurements into sentences."""
    confidence = 1 - ERROR / evidence.num_intervals
    findings = []
    for method in evidence.noisy:
        findings += _check_constant(method, evidence)
        if method in CLASS_AGNOSTIC or not evidence.constant[method].all():
            findings.append(_check_class(method, evidence, confidence))
        if not evidence.constant[method].all():
            findings.append(_check_weights(method, evidence, confidence))
            findings.append(_check_noise(method, evidence, confidence))
            findings.append(_check_faithfulness(method, evidence, confidence))
    findings += [_check_agreement(*pair, evidence, confidence) for pair in evidence.order]
    findings += [_check_replaced(*which, evidence, confidence) for which in evidence.flips]
    findings += _check_other_attention(evidence, confidence)
    findings.append(_check_outliers(evidence, confidence))
    return TrustReport(findings, evidence.images, evidence.num_intervals)


def _check_constant(method: str, evidence: Evidence) -> list[Finding]:
    findings = []
    zero, constant = (int(values.sum()) for values in (evidence.zero[method], evidence.constant[method]))
    for word, number in (("zero", zero), ("constant", constant - zero)):
        if number:
            level: Level = "red" if 2 * number > evidence.images else "amber"
            text = f"the map is {word} on {number} of {_count(evidence.images)}: it marks no patch there"
            findings.append(Finding(level, f"{method}: {word}", text))
    return findings


def _check_class(method: str, evidence: Evidence, confidence: float) -> Finding:
    about = f"{method}: class"
    if method in CLASS_AGNOSTIC:
        text = f"{method} does not depend on the class (by its definition): do not use it to justify the label"
        return Finding("red", about, text)
    similar, open_question = _median(evidence.other_class[method], confidence)
    text = f"the maps for the predicted class and the runner-up have rank correlation {similar}"
    if similar.low > SAME:
        return Finding("red", about, f"{text}: the map hardly depends on the class, so do not use it to justify one")
    if similar.high < UNRELATED:
        return Finding("green", about, f"{text}: the map depends on the class")
    if similar.high < SAME:
        return Finding("amber", about, f"{text}: the map depends on the class, but perhaps little")
    return Finding("amber", about, f"{text}: {open_question} the map depends on the class")


def _check_weights(method: str, evidence: Evidence, confidence: float) -> Finding:
    about = f"{method}: weights"
    similar, open_question = _median(evidence.random_weights[method], confidence)
    text = f"with all layers and the head shuffled once, the map has rank correlation {similar} with the original one"
    if similar.low > UNRELATED:
        return Finding("red", about, f"{text}: it depends on the image or the architecture, not on the trained weights")
    if similar.high >= UNRELATED:
        return Finding("amber", about, f"{text}: {open_question} it depends on the trained weights")
    if method in evidence.random_head:
        with_head, _ = _median(evidence.random_head[method], confidence)
        if with_head.low > SAME:
            text += f": it depends on the trained weights, but hardly on those of the head ({with_head})"
            return Finding("amber", about, text)
    return Finding("green", about, f"{text}: it depends on the trained weights")


def _check_noise(method: str, evidence: Evidence, confidence: float) -> Finding:
    similar, open_question = _median(evidence.noisy[method], confidence)
    text = f"with {100 * NOISE:.0f} % of pixel noise the map has rank correlation {similar} with the original one"
    about = f"{method}: noise"
    if similar.low > SAME:
        return Finding("green", about, f"{text}: it is stable")
    if similar.high < UNRELATED:
        return Finding("red", about, f"{text}: noise that cannot be seen reorders its patches")
    if similar.high < SAME:
        return Finding("amber", about, f"{text}: noise that cannot be seen reorders some of its patches")
    return Finding("amber", about, f"{text}: {open_question} it is stable")


def _check_faithfulness(method: str, evidence: Evidence, confidence: float) -> Finding:
    area, open_question = _median(evidence.above_random[method], confidence)
    measured = f"removal area above that of a random map: {area}"
    about = f"{method}: faith"
    if area.low > 0:
        return Finding("green", about, f"it marks patches that the prediction depends on ({measured})")
    if area.high < 0:
        return Finding("red", about, f"worse than a random map ({measured})")
    return Finding("amber", about, f"{open_question} it marks patches better than a random map ({measured})")


def _check_agreement(one: str, other: str, evidence: Evidence, confidence: float) -> Finding:
    order, open_question = _median(evidence.order[one, other], confidence)
    if math.isnan(order.value):
        return Finding("amber", "agreement", f"{one} and {other} are both constant: they neither agree nor disagree")
    compared = {"the order of all patches": (order, 0.0)}
    measured = [f"rank correlation {order}"]
    for count in (count for first, second, count in evidence.top if (first, second) == (one, other)):
        top = _in_common(evidence.top[one, other, count], count, confidence)
        name = "the highest patch" if count == 1 else f"the highest {count} patches"
        compared[name] = (top, count / evidence.patches)
        measured.append(f"{name} in common {top}, by chance {count / evidence.patches:.2f}")
    agreed = [name for name, (estimate, _) in compared.items() if estimate.low > AGREE]
    level: Level = "green" if agreed else "amber"
    if agreed:
        verdict = f"{one} and {other} agree on {' and '.join(agreed)}"
    elif max(estimate.high for estimate, _ in compared.values()) >= AGREE:
        verdict = f"{open_question} {one} and {other} agree"
    elif any(estimate.low > by_chance for estimate, by_chance in compared.values()):
        verdict = f"{one} and {other} agree little, but more than by chance"
    else:
        level, verdict = "red", f"{one} and {other} disagree"
    return Finding(level, "agreement", f"{verdict} ({'; '.join(measured)})")


def _in_common(overlap: Tensor, count: int, confidence: float) -> Estimate:
    """Return the share of images with the same highest patch. If ``count`` > 1, return the median share in common."""
    overlap = overlap[~overlap.isnan()]
    if count > 1:
        return median_interval(overlap, confidence)
    return share_interval(int((overlap > 0.5).sum()), len(overlap), confidence)


def _check_replaced(kind: str, where: str, evidence: Evidence, confidence: float) -> Finding:
    flips = evidence.flips[kind, where]
    share = share_interval(int(flips.sum()), len(flips), confidence)
    value, low, high = (100 * number for number in share)
    text = f"{kind} attention in {where} changes {value:.1f} % ({low:.1f} to {high:.1f} %) of predictions"
    if (kind, where) in evidence.corrected:
        text += f" (accuracy {100 * evidence.corrected[kind, where].mean().item():+.1f} points)"
    looks = "the model" if where == JOINTLY else "this layer"
    if share.low > USED:
        return Finding("green", "attention", f"{text}: they depend on where {looks} looks")
    if share.high >= USED:
        return Finding("amber", "attention", f"{text}: {_open(len(flips))} they depend much on where {looks} looks")
    if where == JOINTLY:
        text += ": they hardly depend on where the model looks, so a map of attention does not explain them"
        return Finding("red", "attention", text)
    return Finding("amber", "attention", f"{text}: few depend on this layer by itself, as others may make up for it")


def _check_other_attention(evidence: Evidence, confidence: float) -> list[Finding]:
    findings = []
    for where, divergence in evidence.divergence.items():
        far, open_question = _median(divergence, confidence)
        text = (
            f"other attention of {where} gives the same predictions at a divergence of {far}, of at most 0.69 "
            f"({_count(len(divergence))})"
        )
        if far.low > FAR:
            verdict = "a picture of attention is one of many that fit"
        elif far.high < FAR:  # not green: a search that finds none is no proof
            verdict = "the search found none that is far away, though there may be"
        else:
            verdict = f"{open_question} that is far"
        findings.append(Finding("amber", "attention", f"{text}: {verdict}"))
    if evidence.not_searched:
        text = f"other attention with the same predictions was not searched: {evidence.not_searched}"
        findings.append(Finding("amber", "attention", text))
    return findings


def _check_outliers(evidence: Evidence, confidence: float) -> Finding:
    if evidence.outliers is None:
        return Finding("amber", "outliers", "the layers share one module: the norms of their tokens were not measured")
    found = evidence.outliers[evidence.outliers[:, 0] > 0]
    number = share_interval(len(found), evidence.images, confidence)
    text = f"{len(found)} of {_count(evidence.images)} have patch tokens of outlying norm before the last layer"
    if not len(found):
        level: Level = "green" if number.high < USED else "amber"
        return Finding(level, "outliers", f"{text} ({number.low:.2f} to {number.high:.2f} of all images)")
    share, mass = found.unbind(dim=-1)
    text += (
        f": {100 * share.mean():.1f} % of their patch tokens, which get {100 * mass.mean():.1f} % of the last attention"
    )
    excess, open_question = _median(mass - CONCENTRATION * share, confidence)
    if excess.low > 0:
        return Finding("red", "outliers", f"{text}: maps of it show these tokens, which may serve as memory")
    if excess.high < 0:
        return Finding("green", "outliers", f"{text}: less than {CONCENTRATION:.0f} times their even share")
    return Finding(
        "amber", "outliers", f"{text}: {open_question} it is more than {CONCENTRATION:.0f} times their even share"
    )


def _median(values: Tensor, confidence: float) -> tuple[Estimate, str]:
    """Return the median over the images with comparable maps, and the words for an open question."""
    values = values[~values.isnan()]
    return median_interval(values, confidence), _open(len(values))


def _open(images: int) -> str:
    return f"cannot tell on {_count(images)} whether"


def _count(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"
