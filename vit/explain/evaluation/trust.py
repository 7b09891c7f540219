"""A report in plain sentences on how far maps of a model can be believed.

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from collections.abc import Sequence

import torch
from einops import einsum, reduce
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.report import Finding, Level, TrustReport
from vit.explain.evaluation.sanity import other_class, randomised_layers, rank_correlation, uniform_attention
from vit.explain.evaluation.table import bootstrap
from vit.explain.maps import CLASS_AGNOSTIC, METHODS, Subject, signed_map
from vit.explain.maps.perturbation import can_drop

# Rank correlations from which on two maps look the same to a reader, and up to which they look unrelated.
SAME, UNRELATED = 0.9, 0.5
# Shares of predictions that may change before a layer's attention counts as used.
UNUSED, USED = 0.02, 0.10
NOISE = 0.05  # standard deviation of the noise that should not matter, in units of the image's own deviation
OUTLIER = 6.0  # median absolute deviations above the median from which a token's norm is an outlier
FEWEST = 10  # images from which on a share or a mean of them says anything about others
CONCENTRATION = 3.0  # times its even share that outlier tokens may get of the read-out's attention


def trust_report(
    model: nn.Module,
    images: Tensor,
    methods: Sequence[str] = ("rollout", "relevance", "occlusion"),
    labels: Tensor | None = None,
    **given: tuple[int, int] | int | None,
) -> TrustReport:
    """What maps of this model on these images are worth, in plain sentences.

    For each method: does the map depend on the class, on the weights, on noise nobody sees, and does it name the
    patches that the prediction rests on? Then, for all: do methods agree, is attention used at all, and does a mass of
    it lie on tokens that serve as memory?

    Args:
        model: A ViT classifier in eval mode.
        images: Images as it takes them, (B, C, H, W); some dozens at least.
        methods: Keys of ``METHODS``.
        labels: Their classes, (B,), to report changes of accuracy besides those of predictions.
        **given: ``given_grid`` and ``given_prefix``, where the model does not say them.

    Raises:
        ValueError: If there is no such method, or attention cannot be seen.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}: choose one of {', '.join(METHODS)}")
    subject = Subject(model, images, **given)
    maps = {method: signed_map(method, subject) for method in methods}
    findings = []
    classes = other_class(model, images, methods, **given)
    forgotten = randomised_layers(model, images, methods, **given)
    for method in methods:
        findings.append(_on_class(method, classes[method].mean))
        findings.append(_on_weights(method, [interval.mean for interval in forgotten[method].values()]))
        findings.append(_on_noise(method, subject, maps[method]))
        findings.append(_on_faith(method, subject, maps[method]))
    findings += _on_agreement(maps)
    findings += _on_uniform_attention(model, images, labels)
    findings.append(_on_outliers(subject))
    return TrustReport(findings, len(images))


def _on_class(method: str, correlation: float) -> Finding:
    about = f"{method}: class"
    if method in CLASS_AGNOSTIC or correlation > SAME:
        why = "by its definition" if method in CLASS_AGNOSTIC else f"rank correlation {correlation:.2f}"
        return Finding(
            "red", about, f"{method} does not depend on the class ({why}): do not use it to justify the label"
        )
    level = "amber" if correlation > UNRELATED else "green"
    text = f"the maps for the predicted class and the runner-up have rank correlation {correlation:.2f}"
    return Finding(level, about, text + (": they differ little" if level == "amber" else ": it is about this class"))


def _on_weights(method: str, correlations: list[float]) -> Finding:
    about = f"{method}: weights"
    last = correlations[-1]
    text = f"with all layers and the head randomised the map keeps rank correlation {last:.2f} with that of the model"
    if last > UNRELATED:
        return Finding("red", about, f"{text}: it shows the image or the architecture, not what was learned")
    if correlations[0] > SAME and method not in CLASS_AGNOSTIC:
        return Finding("amber", about, f"{text}, but it hardly notices a random head ({correlations[0]:.2f})")
    return Finding("green", about, text)


def _on_noise(method: str, subject: Subject, maps: Tensor) -> Finding:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(subject.images.shape, generator=generator).to(subject.images)
    target = subject.contrast.argmax(dim=-1)
    noisy = Subject(
        subject.model,
        subject.images + NOISE * subject.images.std() * noise,
        target,
        given_grid=subject.given_grid,
        given_prefix=subject.given_prefix,
    )
    correlation = rank_correlation(maps, signed_map(method, noisy)).mean().item()
    level: Level = "green" if correlation > SAME else "amber" if correlation > UNRELATED else "red"
    return Finding(
        level,
        f"{method}: noise",
        f"{100 * NOISE:.0f} % of noise in the pixels leaves rank correlation {correlation:.2f} with the map without it",
    )


def _on_faith(method: str, subject: Subject, maps: Tensor) -> Finding:
    removal = "token_drop" if can_drop(subject) else "mean_fill"
    areas = []
    for candidate in (maps, signed_map("random", subject)):
        curves = removal_curves(subject, candidate, removal)
        areas.append(curves.insertion - curves.deletion)
    difference = bootstrap(areas[0] - areas[1])
    about, seen = f"{method}: faith", f"removal area above random: {difference.mean:.3f}"
    if len(maps) < FEWEST:
        return Finding("amber", about, f"too few images to tell whether it names what the prediction rests on ({seen})")
    level: Level = "green" if difference.low > 0 else "red" if difference.high < 0 else "amber"
    verdict = {
        "green": "it names patches that the prediction rests on",
        "amber": "not distinguishable from a random map on these images",
        "red": "worse than a random map",
    }[level]
    return Finding(level, about, f"{verdict} ({seen}, 95 % interval {difference.low:.3f} to {difference.high:.3f})")


def _on_agreement(maps: dict[str, Tensor]) -> list[Finding]:
    names = list(maps)
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    findings = []
    for one, other in pairs:
        correlation = rank_correlation(maps[one], maps[other]).mean().item()
        level: Level = "green" if correlation > UNRELATED else "amber" if correlation > 0.2 else "red"
        words = {"green": "agree", "amber": "agree in part", "red": "tell different stories"}[level]
        findings.append(Finding(level, "agreement", f"{one} and {other} {words} (rank correlation {correlation:.2f})"))
    return findings


def _on_uniform_attention(model: nn.Module, images: Tensor, labels: Tensor | None) -> list[Finding]:
    if len(images) < FEWEST:
        return [Finding("amber", "attention", "too few images to tell whether predictions change when it is uniform")]
    table = uniform_attention(model, images, labels)
    findings = []
    unused = [r for r in table.rows if r["heads"] == "all" and r["layers"].startswith("0") and r["flips"] < UNUSED]
    if unused:
        findings.append(_on_replacement(unused[-1]))
    said = {row["layers"] for row in unused[-1:]}
    singles = [row for row in table.rows if row["heads"] == "all" and row["layers"].isdigit()]
    return findings + [_on_replacement(row) for row in singles if row["layers"] not in said]


def _on_replacement(row: dict[str, object]) -> Finding:
    flips = row["flips"]
    level: Level = "red" if flips < UNUSED else "amber" if flips < USED else "green"
    where = f"{'layers' if 'to' in str(row['layers']) else 'layer'} {row['layers']}"
    text = f"uniform attention in {where} changes {100 * flips:.1f} % of predictions"
    if "accuracy_change" in row:
        text += f" (accuracy {100 * row['accuracy_change']:+.1f} points)"
    meaning = {
        "red": ": where it looks does not matter there, so a picture of it explains nothing",
        "amber": ": it matters to few of them",
        "green": ": it is used",
    }
    return Finding(level, "attention", text + meaning[level])


@torch.no_grad()
def _on_outliers(subject: Subject) -> Finding:
    anatomy, shares, norms = subject.anatomy, [], []

    def keep(layer: int, attn: Tensor) -> Tensor:
        if layer == anatomy.depth - 1:
            row = einsum(anatomy.readout.to(attn), reduce(attn, "b h n m -> b n m", "mean"), "n, b n m -> b m")
            shares.append(row[:, anatomy.patches])
        return attn

    def keep_norms(tokens: Tensor) -> Tensor:
        norms.append(tokens[:, anatomy.patches].norm(dim=-1))
        return tokens

    if not anatomy.layers:
        return Finding("amber", "outliers", "the layers share one module: the norms of their tokens were not looked at")
    with anatomy.layers[-1].changed(keep_norms):
        run_intercepted(subject.model, subject.images, keep)
    median = norms[0].median()
    deviation = (norms[0] - median).abs().median()
    outliers = norms[0] > median + OUTLIER * deviation
    share = outliers.double().mean().item()
    if not share:
        return Finding("green", "outliers", "no patch token has an outlying norm before the last layer")
    mass = ((shares[0] * outliers).sum() / shares[0].sum()).item()
    level: Level = "green" if mass < CONCENTRATION * share else "red"
    text = (
        f"{100 * share:.1f} % of patch tokens have an outlying norm, and get {100 * mass:.1f} % of the last attention"
    )
    return Finding(
        level, "outliers", text + (": maps of it show where the model stores things" if level == "red" else "")
    )
