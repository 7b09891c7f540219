"""The sentences of a trust report, printed as lines and as HTML."""

from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

from vit.explain.evaluation.intervals import fewest_images

Level = Literal["green", "amber", "red"]

ERROR = 0.05  # probability that any interval of a report misses, split evenly among all of them (Bonferroni, Dunn 1961)


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
            f"{counts}; measured on {count_images(self.images)}. All {self.intervals} intervals together hold with "
            f"{100 * (1 - ERROR):.0f} % confidence, each with {100 * confidence:.2f} % (Bonferroni). Correlations, "
            f"areas and divergences are medians, which have an interval from {fewest_images(confidence)} images on"
        )


def count_images(number: int) -> str:
    """Return a number of images in words.

    >>> count_images(1), count_images(7)
    ('1 image', '7 images')
    """
    return "1 image" if number == 1 else f"{number} images"
