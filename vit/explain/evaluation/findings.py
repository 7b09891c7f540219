"""The sentences of a trust report, printed as lines and as HTML."""

from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

from vit.explain.evaluation.confidence import fewest_images
from vit.glossary import EVERYWHERE, MAPS, TRUST
from vit.support.files import replacing

Level = Literal["green", "amber", "red"]

# Marks tell the levels apart even for colour-blind readers.
MARKS = {"green": "&#10003;", "amber": "!", "red": "&#10007;"}
COLORS = {"green": "#009E73", "amber": "#B8860B", "red": "#D55E00"}

ERROR = 0.05  # probability that any interval of a report misses, split evenly among all of them (Bonferroni, Dunn 1961)


@dataclass
class Finding:
    """One sentence of a report.

    Attributes:
        level: Whether a map can be trusted in this: "green" for yes, "red" for no, "amber" for neither.
        about: The subject.
        text: The sentence.
        more: If the level is amber, whether more images would decide, and how many.
    """

    level: Level
    about: str
    text: str
    more: str = ""


@dataclass(repr=False)
class TrustReport:
    """Findings on a number of images, printed as lines and as HTML in a notebook.

    Attributes:
        findings: The sentences.
        images: Number of images.
        intervals: Number of intervals that the findings depend on. All of them hold together.
        clusters: Number of clusters of images; the intervals are over their means. None if all images are independent.
    """

    findings: list[Finding]
    images: int
    intervals: int
    clusters: int | None = None

    def __str__(self) -> str:
        width = max(len(finding.about) for finding in self.findings)
        texts = [f"{finding.text}; {finding.more}" if finding.more else finding.text for finding in self.findings]
        lines = [f"{f.level:<5}  {f.about:<{width}}  {text}" for f, text in zip(self.findings, texts, strict=True)]
        return "\n".join([*lines, "", self._summary()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = []
        for finding in self.findings:
            rows.append(
                f'<tr><td style="white-space:nowrap"><b><span style="color:{COLORS[finding.level]}">'
                f"{MARKS[finding.level]}</span> {finding.level}</b></td>"
                f'<td style="white-space:nowrap;text-align:left"><b>{escape(finding.about)}</b></td>'
                f'<td style="text-align:left">{escape(finding.text)}<br><i>{escape(finding.more)}</i></td></tr>'
            )
        return f"<table>{''.join(rows)}</table><p>{escape(self._summary())}</p>"

    def save(self, path: str | Path, subject: str = "") -> Path:
        """Write the report to an HTML file that any browser opens, and return its path.

        Args:
            path: The HTML file.
            subject: What the report is about, such as the model and the images; a line below the title.
        """
        from vit.support.pages import page_templates  # imports Jinja

        page = page_templates(TRUST, EVERYWHERE).get_template("explain/trust_page.html")
        facts = {"marks": MARKS, "subject": subject, "summary": self._summary(), "maps": MAPS}
        with replacing(Path(path)) as unfinished:
            text = page.render(**facts, groups=self._by_method())
            unfinished.write_text(text, encoding="utf-8")
        return Path(path)

    def _by_method(self) -> list[tuple[str, list[tuple[str, Finding]]]]:
        """Group the findings by their method ("" if there is none), each with the name of its check."""
        named = [(*finding.about.rpartition(": ")[::2], finding) for finding in self.findings]
        grouped = groupby(named, key=lambda row: row[0])
        return [(method, [(check, finding) for _, check, finding in rows]) for method, rows in grouped]

    def _summary(self) -> str:
        counts = ", ".join(f"{sum(f.level == level for f in self.findings)} {level}" for level in get_args(Level))
        confidence = 1 - ERROR / self.intervals
        return (
            f"{counts}; measured on {self._measured()}. All {self.intervals} intervals together hold with "
            f"{100 * (1 - ERROR):.0f} % confidence, each with {100 * confidence:.2f} % (Bonferroni). Correlations, "
            f"areas and divergences are medians, which have an interval from {fewest_images(confidence)} "
            f"{'images' if self.clusters is None else 'clusters'} on"
        )

    def _measured(self) -> str:
        if self.clusters is None:
            return count_images(self.images)
        return f"{count_images(self.images)} in {count_images(self.clusters, 'cluster')}, over whose means all is said"


def count_images(number: int, unit: str = "image") -> str:
    """Return a number of images, or of another unit, in words.

    >>> count_images(1), count_images(7), count_images(7, "cluster")
    ('1 image', '7 images', '7 clusters')
    """
    return f"1 {unit}" if number == 1 else f"{number} {unit}s"
