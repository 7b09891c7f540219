"""A report in plain sentences on how far the maps of a model can be trusted.

Each sentence compares a confidence interval over the images with a threshold that is named here. If the interval does
not decide, the sentence says so.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from vit.explain.evaluation.confidence import check_clusters, fewest_images
from vit.explain.evaluation.evidence import JOINTLY, NOISE, SEARCHED, UNTRAINED, Evidence, collect
from vit.explain.evaluation.findings import ERROR, Finding, Level, TrustReport, count_images
from vit.explain.evaluation.verdicts import NO_MORE, Expected, Verdict, decide, median, say_more, share
from vit.explain.maps import CLASS_AGNOSTIC, Subject, check_method

# Rank correlations: above the first, two maps look the same; below the second, they look unrelated.
SAME, UNRELATED = 0.9, 0.5
AGREE = 0.5  # above this rank correlation, or share of the highest patches in common, two methods agree
USED = 0.10  # above this share of changed predictions, attention counts as used
FAR = 0.35  # above this divergence, adversarial attention is far; about half of the largest, ln 2
LEAST = 0.02  # removal area above that of a control, a mean difference of probabilities, from which on it counts
CONCENTRATION = 3.0  # outlier tokens get too much of the read-out's attention above this multiple of their even share


class Check(NamedTuple):
    """A check of the maps of a method: what is measured, how it is said, and the possible verdicts.

    The first verdict that applies counts. If none does, the report says that the question is open.
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
        "the maps of untrained models (weights shuffled) have absolute rank correlation {interval} with the original "
        "one: {verdict}",
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
}


def trust_report(
    model: nn.Module,
    images: Tensor,
    methods: Sequence[str] = ("rollout", "relevance", "occlusion"),
    labels: Tensor | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    clusters: Tensor | Sequence[int] | None = None,
) -> TrustReport:
    """Report in plain sentences how far the maps of this model on these images can be trusted.

    For each method: does the map depend on the class, on the weights and on invisible noise? Does it mark the patches
    that the prediction depends on better than every control: maps that ignore the model, the method's own mean map,
    and its maps of untrained models? For all methods: do they agree? Do predictions change with uniform or permuted
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
        clusters: A number for each image, the same for images that depend on each other, such as the frames of a
            video, as in ``score``. Verdicts are then about the means of the clusters. None takes all images as
            independent.

    Raises:
        ValueError: If there is no such method, or attention cannot be captured.
    """
    clusters = check_clusters(clusters, len(images))
    for method in methods:
        check_method(method)
    subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
    evidence = collect(subject, methods, labels)
    return judge(evidence if clusters is None else evidence.of_clusters(clusters))


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
            findings += _check_faith(method, evidence, confidence)
    findings += [_check_agreement(*pair, evidence, confidence) for pair in evidence.order]
    findings += [_check_replaced(*which, evidence, confidence) for which in evidence.flips]
    findings += _check_other_attention(evidence, confidence)
    findings.append(_check_outliers(evidence, confidence))
    return TrustReport(findings, evidence.images, evidence.num_intervals, evidence.clusters)


def _check_constant(method: str, evidence: Evidence) -> list[Finding]:
    findings = []
    zero, constant = (int(values.sum()) for values in (evidence.zero[method], evidence.constant[method]))
    for word, number in (("zero", zero), ("constant", constant - zero)):
        if number:
            level: Level = "red" if 2 * number > evidence.images else "amber"
            text = f"the map is {word} on {number} of {count_images(evidence.images)}: it marks no patch there"
            findings.append(Finding(level, f"{method}: {word}", text, NO_MORE if level == "amber" else ""))
    return findings


def _check_map(method: str, about: str, evidence: Evidence, confidence: float) -> Finding:
    check = CHECKS[about]
    expected, images = median(getattr(evidence, check.measured)[method], confidence)
    level, words, more = decide(expected, images, check.question, check.verdicts, confidence, evidence.unit)
    if about == "weights" and level == "green":
        level, words, more = _doubt_weights(method, evidence, confidence) or (level, words, more)
    text = check.sentence.format(interval=expected(images), verdict=words)
    return Finding(level, f"{method}: {about}", text, more)


def _doubt_weights(method: str, evidence: Evidence, confidence: float) -> tuple[Level, str, str] | None:
    """Return why a map may not depend on training although it differs from those of untrained models."""
    if method in evidence.random_head:
        of_head, count = median(evidence.random_head[method], confidence)
        if of_head(count).low > SAME:
            return "amber", f"it depends on the weights, but hardly on those of the head ({of_head(count)})", NO_MORE
    if (method, UNTRAINED) in evidence.above_control:
        above, count = median(evidence.above_control[method, UNTRAINED], confidence)
        if above(count).low <= LEAST:
            words = (
                f"it changes with the weights, as noise does, but is not clearly better (removal area {above(count)})"
            )
            return "amber", words, say_more(lambda n: above(n).low > LEAST, count, confidence, evidence.unit)
    return None


def _check_faith(method: str, evidence: Evidence, confidence: float) -> list[Finding]:
    """Compare the removal area with every control: green if all are clearly below, red if one is clearly not."""
    found = {c: median(values, confidence) for (m, c), values in evidence.above_control.items() if m == method}
    if not found:
        return []
    images = min(count for _, count in found.values())

    def find(count: float) -> tuple[Level, str]:
        intervals = {control: expected(count) for control, (expected, _) in found.items()}
        lowest = min(intervals, key=lambda control: intervals[control].high)
        if intervals[lowest].high < LEAST:
            return "red", lowest
        nearest = min(intervals, key=lambda control: intervals[control].low)
        return ("green" if intervals[nearest].low > LEAST else "amber"), nearest

    level, control = find(images)
    words = {
        "green": "it marks patches that the prediction depends on, better than every control",
        "red": f"it marks patches no better than the control {control}",
        "amber": f"cannot tell on {count_images(images, evidence.unit)} whether it marks patches better than {control}",
    }[level]
    unit = evidence.unit
    more = say_more(lambda count: find(count)[0] != "amber", images, confidence, unit) if level == "amber" else ""
    text = f"{words} (removal area above that of {control}: {found[control][0](images)}, it must exceed {LEAST})"
    return [Finding(level, f"{method}: faith", text, more)]


def _check_agreement(one: str, other: str, evidence: Evidence, confidence: float) -> Finding:
    order, images = median(evidence.order[one, other], confidence)
    if not images:
        text = f"{one} and {other} are both constant: they neither agree nor disagree"
        return Finding("amber", "agreement", text, NO_MORE)
    compared = {"the order of all patches": (order, 0.0)}
    measured = [f"rank correlation {order(images)}"]
    for count in (count for first, second, count in evidence.top if (first, second) == (one, other)):
        top = _in_common(evidence.top[one, other, count], count, confidence)
        name = "the highest patch" if count == 1 else f"the highest {count} patches"
        compared[name] = (top, count / evidence.patches)
        measured.append(f"{name} in common {top(images)}, by chance {count / evidence.patches:.2f}")

    def agree_on(images: float) -> list[str]:
        return [name for name, (expected, _) in compared.items() if expected(images).low > AGREE]

    def may_agree(images: float) -> bool:
        return max(expected(images).high for expected, _ in compared.values()) >= AGREE

    level: Level = "amber"
    more = NO_MORE
    if agreed := agree_on(images):
        level, verdict, more = "green", f"{one} and {other} agree on {' and '.join(agreed)}", ""
    elif may_agree(images):
        verdict = f"cannot tell on {count_images(images, evidence.unit)} whether {one} and {other} agree"
        more = say_more(lambda n: bool(agree_on(n)) or not may_agree(n), images, confidence, evidence.unit)
    elif any(expected(images).low > by_chance for expected, by_chance in compared.values()):
        verdict = f"{one} and {other} agree little, but more than by chance"
    else:
        level, verdict, more = "red", f"{one} and {other} disagree", ""
    return Finding(level, "agreement", f"{verdict} ({'; '.join(measured)})", more)


def _in_common(overlap: Tensor, count: int, confidence: float) -> Expected:
    """Estimate the share of images with the same highest patch or, if ``count`` > 1, the median share in common."""
    if count > 1:
        return median(overlap, confidence)[0]
    return share(overlap[~overlap.isnan()], confidence)


def _check_replaced(kind: str, where: str, evidence: Evidence, confidence: float) -> Finding:
    flips = evidence.flips[kind, where]
    changed = share(flips, confidence)
    value, low, high = (100 * number for number in changed(len(flips)))
    text = f"{kind} attention in {where} changes {value:.1f} % ({low:.1f} to {high:.1f} %) of predictions"
    if (kind, where) in evidence.corrected:
        text += f" (accuracy {100 * evidence.corrected[kind, where].mean().item():+.1f} points)"
    looks = "the model" if where == JOINTLY else "this layer"
    unused = Verdict("amber", "few depend on this layer by itself, as others may make up for it", below=USED)
    if where == JOINTLY:
        words = "they hardly depend on where the model looks, so a map of attention does not explain them"
        unused = Verdict("red", words, below=USED)
    used = Verdict("green", f"they depend on where {looks} looks", above=USED)
    question = f"they depend much on where {looks} looks"
    level, words, more = decide(changed, len(flips), question, (used, unused), confidence, evidence.unit)
    return Finding(level, "attention", f"{text}: {words}", more)


def _check_other_attention(evidence: Evidence, confidence: float) -> list[Finding]:
    findings = []
    verdicts = (
        Verdict("amber", "a picture of attention is one of many that fit", above=FAR),
        # This is not green: a search that finds none is no proof.
        Verdict("amber", "the search found none that is far away, though there may be", below=FAR),
    )
    for where, divergence in evidence.divergence.items():
        far, images = median(divergence, confidence)
        level, words, more = decide(far, images, "that is far", verdicts, confidence, evidence.unit)
        if more != NO_MORE:  # no more images than these are searched
            at_most = f"at most {SEARCHED} images are searched"
            more = (
                f"more images may decide it, but {at_most}" if evidence.images < SEARCHED else f"{NO_MORE}: {at_most}"
            )
        text = (
            f"other attention of {where} gives the same predictions at a divergence of {far(images)}, of at most 0.69 "
            f"({count_images(images, evidence.unit)}): {words}"
        )
        findings.append(Finding(level, "attention", text, more))
    if evidence.not_searched:
        text = f"other attention with the same predictions was not searched: {evidence.not_searched}"
        few = evidence.independent < fewest_images(0.95)
        findings.append(Finding("amber", "attention", text, "more images are needed to decide it" if few else NO_MORE))
    return findings


def _check_outliers(evidence: Evidence, confidence: float) -> Finding:
    if evidence.outliers is None:
        text = f"the norms of tokens were not measured: {evidence.not_measured}"
        return Finding("amber", "outliers", text, NO_MORE)
    has_outliers, unit = evidence.outliers[:, 0] > 0, evidence.unit
    found = evidence.outliers[has_outliers]
    among = count_images(evidence.independent, unit)
    text = f"{len(found)} of {among} have patch tokens of outlying norm before the last layer"
    if not len(found):
        having = share(has_outliers, confidence)
        low, high = having(evidence.independent)[1:]
        verdicts = (Verdict("green", "", below=USED),)
        level, _, more = decide(having, evidence.independent, "", verdicts, confidence, unit)
        return Finding(level, "outliers", f"{text} ({low:.2f} to {high:.2f} of all {unit}s)", more)
    part, mass = found.unbind(dim=-1)
    verdicts = (
        Verdict("red", "maps of it show these tokens, which may serve as memory", above=0),
        Verdict("green", f"less than {CONCENTRATION:.0f} times their even share", below=0),
    )
    question = f"it is more than {CONCENTRATION:.0f} times their even share"
    level, words, more = decide(*median(mass - CONCENTRATION * part, confidence), question, verdicts, confidence, unit)
    tokens, attention = 100 * part.mean(), 100 * mass.mean()
    parts = f"{tokens:.1f} % of their patch tokens, which get {attention:.1f} % of the last attention to patches"
    return Finding(level, "outliers", f"{text}: {parts}: {words}", more.replace(f"{unit}s", f"such {unit}s"))
