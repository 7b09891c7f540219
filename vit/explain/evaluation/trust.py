"""A report in plain sentences on how far the maps of a model can be trusted.

Each sentence compares a confidence interval over the images with a threshold that is named here. If the interval does
not decide, the sentence says so.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from vit.explain.evaluation.evidence import JOINTLY, NOISE, Evidence, collect
from vit.explain.evaluation.findings import ERROR, Finding, Level, TrustReport, count_images
from vit.explain.evaluation.intervals import Estimate, median_interval, share_interval
from vit.explain.maps import CLASS_AGNOSTIC, Subject, check_method

# Rank correlations: above the first, two maps look the same; below the second, they look unrelated.
SAME, UNRELATED = 0.9, 0.5
AGREE = 0.5  # above this rank correlation, or share of the highest patches in common, two methods agree
USED = 0.10  # above this share of changed predictions, attention counts as used
FAR = 0.35  # above this divergence, adversarial attention is far; about half of the largest, ln 2
CONCENTRATION = 3.0  # above this multiple of their even share of the read-out's attention, outlier tokens get too much


class Verdict(NamedTuple):
    """What the report says if a whole interval lies between two bounds."""

    level: Level
    words: str
    above: float = -math.inf
    below: float = math.inf


class Check(NamedTuple):
    """A check of the maps of a method: what is measured, how it is said, and the verdicts, of which the first counts.

    If no verdict applies, the report says that the question is open.
    """

    measured: str  # the attribute of the evidence
    sentence: str
    question: str
    verdicts: Sequence[Verdict]


CHECKS = {
    "class": Check(
        "other_class",
        "the maps for the predicted class and the runner-up have rank correlation {interval}: {verdict}",
        "the map depends on the class",
        (
            Verdict("red", "the map hardly depends on the class, so do not use it to justify one", above=SAME),
            Verdict("green", "the map depends on the class", below=UNRELATED),
            Verdict("amber", "the map depends on the class, but perhaps little", below=SAME),
        ),
    ),
    "weights": Check(
        "random_weights",
        "with all layers and the head shuffled once, the map has rank correlation {interval} with the original one: "
        "{verdict}",
        "it depends on the trained weights",
        (
            Verdict("red", "it depends on the image or the architecture, not on the trained weights", above=UNRELATED),
            Verdict("green", "it depends on the trained weights", below=UNRELATED),
        ),
    ),
    "noise": Check(
        "noisy",
        f"with {100 * NOISE:.0f} % of pixel noise the map has rank correlation {{interval}} with the original one: "
        "{verdict}",
        "it is stable",
        (
            Verdict("green", "it is stable", above=SAME),
            Verdict("red", "noise that cannot be seen reorders its patches", below=UNRELATED),
            Verdict("amber", "noise that cannot be seen reorders some of its patches", below=SAME),
        ),
    ),
    "faith": Check(
        "above_random",
        "{verdict} (removal area above that of a random map: {interval})",
        "it marks patches better than a random map",
        (
            Verdict("green", "it marks patches that the prediction depends on", above=0),
            Verdict("red", "worse than a random map", below=0),
        ),
    ),
}


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
    subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
    return judge(collect(subject, methods, labels))


def judge(evidence: Evidence) -> TrustReport:
    """Turn measurements into sentences."""
    confidence = 1 - ERROR / evidence.num_intervals
    findings = []
    for method in evidence.noisy:
        findings += _check_constant(method, evidence)
        if method in CLASS_AGNOSTIC:
            text = f"{method} does not depend on the class (by its definition): do not use it to justify the label"
            findings.append(Finding("red", f"{method}: class", text))
        if not evidence.constant[method].all():
            measured = (about for about, check in CHECKS.items() if method in getattr(evidence, check.measured))
            findings += [_check_map(method, about, evidence, confidence) for about in measured]
    findings += [_check_agreement(*pair, evidence, confidence) for pair in evidence.order]
    findings += [_check_replaced(*which, evidence, confidence) for which in evidence.flips]
    findings += _check_other_attention(evidence, confidence)
    findings.append(_check_outliers(evidence, confidence))
    return TrustReport(findings, evidence.images, evidence.num_intervals)


def _decide(estimate: Estimate, images: int, question: str, verdicts: Sequence[Verdict]) -> tuple[Level, str]:
    """Return the level and the words of the first verdict that applies, or amber and that the question is open."""
    for verdict in verdicts:
        if estimate.low > verdict.above and estimate.high < verdict.below:
            return verdict.level, verdict.words
    return "amber", f"cannot tell on {count_images(images)} whether {question}"


def _check_constant(method: str, evidence: Evidence) -> list[Finding]:
    findings = []
    zero, constant = (int(values.sum()) for values in (evidence.zero[method], evidence.constant[method]))
    for word, number in (("zero", zero), ("constant", constant - zero)):
        if number:
            level: Level = "red" if 2 * number > evidence.images else "amber"
            text = f"the map is {word} on {number} of {count_images(evidence.images)}: it marks no patch there"
            findings.append(Finding(level, f"{method}: {word}", text))
    return findings


def _check_map(method: str, about: str, evidence: Evidence, confidence: float) -> Finding:
    check = CHECKS[about]
    median, images = _median(getattr(evidence, check.measured)[method], confidence)
    level, words = _decide(median, images, check.question, check.verdicts)
    if about == "weights" and level == "green" and method in evidence.random_head:
        with_head, _ = _median(evidence.random_head[method], confidence)
        if with_head.low > SAME:
            level, words = "amber", f"{words}, but hardly on those of the head ({with_head})"
    return Finding(level, f"{method}: {about}", check.sentence.format(interval=median, verdict=words))


def _check_agreement(one: str, other: str, evidence: Evidence, confidence: float) -> Finding:
    order, images = _median(evidence.order[one, other], confidence)
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
        verdict = f"cannot tell on {count_images(images)} whether {one} and {other} agree"
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
    unused = Verdict("amber", "few depend on this layer by itself, as others may make up for it", below=USED)
    if where == JOINTLY:
        words = "they hardly depend on where the model looks, so a map of attention does not explain them"
        unused = Verdict("red", words, below=USED)
    used = Verdict("green", f"they depend on where {looks} looks", above=USED)
    level, words = _decide(share, len(flips), f"they depend much on where {looks} looks", (used, unused))
    return Finding(level, "attention", f"{text}: {words}")


def _check_other_attention(evidence: Evidence, confidence: float) -> list[Finding]:
    findings = []
    verdicts = (
        Verdict("amber", "a picture of attention is one of many that fit", above=FAR),
        # Not green: a search that finds none is no proof.
        Verdict("amber", "the search found none that is far away, though there may be", below=FAR),
    )
    for where, divergence in evidence.divergence.items():
        far, images = _median(divergence, confidence)
        level, words = _decide(far, images, "that is far", verdicts)
        text = (
            f"other attention of {where} gives the same predictions at a divergence of {far}, of at most 0.69 "
            f"({count_images(len(divergence))}): {words}"
        )
        findings.append(Finding(level, "attention", text))
    if evidence.not_searched:
        text = f"other attention with the same predictions was not searched: {evidence.not_searched}"
        findings.append(Finding("amber", "attention", text))
    return findings


def _check_outliers(evidence: Evidence, confidence: float) -> Finding:
    if evidence.outliers is None:
        return Finding("amber", "outliers", "the layers share one module: the norms of their tokens were not measured")
    found = evidence.outliers[evidence.outliers[:, 0] > 0]
    number = share_interval(len(found), evidence.images, confidence)
    text = f"{len(found)} of {count_images(evidence.images)} have patch tokens of outlying norm before the last layer"
    if not len(found):
        level: Level = "green" if number.high < USED else "amber"
        return Finding(level, "outliers", f"{text} ({number.low:.2f} to {number.high:.2f} of all images)")
    share, mass = found.unbind(dim=-1)
    verdicts = (
        Verdict("red", "maps of it show these tokens, which may serve as memory", above=0),
        Verdict("green", f"less than {CONCENTRATION:.0f} times their even share", below=0),
    )
    question = f"it is more than {CONCENTRATION:.0f} times their even share"
    level, words = _decide(*_median(mass - CONCENTRATION * share, confidence), question, verdicts)
    parts = (
        f"{100 * share.mean():.1f} % of their patch tokens, which get {100 * mass.mean():.1f} % of the last attention"
    )
    return Finding(level, "outliers", f"{text}: {parts}: {words}")


def _median(values: Tensor, confidence: float) -> tuple[Estimate, int]:
    """Return the median over the images with comparable maps, and the number of these images."""
    values = values[~values.isnan()]
    return median_interval(values, confidence), len(values)
