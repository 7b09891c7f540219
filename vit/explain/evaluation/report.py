"""Sentences with a colour, as text and as HTML."""

from dataclasses import dataclass
from html import escape
from typing import Literal

Level = Literal["green", "amber", "red"]


@dataclass
class Finding:
    """One sentence of a report: how good the news is, about what, and what was seen."""

    level: Level
    about: str
    text: str


@dataclass(repr=False)
class TrustReport:
    """Findings, which print themselves as lines and as HTML in a notebook."""

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
        counts = ", ".join(
            f"{sum(f.level == level for f in self.findings)} {level}" for level in ("green", "amber", "red")
        )
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return f"{counts}; measured on {images}: fewer than 100 show tendencies only"
