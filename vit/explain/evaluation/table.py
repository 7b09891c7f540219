"""Tables of measurements that print themselves, and means that know how uncertain they are."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

RESAMPLES = 1000


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(values: Tensor) -> Interval:
    """Mean of one number for each image, with the interval that resampling the images gives: (B,) -> Interval.

    The 2.5 and 97.5 % quantiles of the means of 1,000 resamples (Efron 1979). The same images are drawn whenever as
    many are given, so that the interval of a difference is that of pairs. One image has no interval: -inf to inf.

    >>> str(bootstrap(torch.ones(7)))
    '1.000 (1.000 to 1.000)'
    """
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values have shape {tuple(values.shape)}: give one number for each of at least one image")
    values = values.detach().double().cpu()
    if len(values) == 1:
        return Interval(values.item(), -math.inf, math.inf)
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=torch.Generator().manual_seed(0))
    means = values[drawn].mean(dim=-1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    return Interval(values.mean().item(), low, high)


@dataclass
class Table:
    """Rows of named values, printed as Markdown: in a terminal, a notebook or a README.

    >>> print(Table([{"method": "rollout", "hits": 0.5}], note="7 images"))
    | method  |  hits |
    |---------|-------|
    | rollout | 0.500 |
    <BLANKLINE>
    7 images
    """

    rows: list[dict[str, Any]]
    note: str = ""

    def column(self, name: str) -> list[Any]:
        """The values under one name."""
        return [row[name] for row in self.rows]

    def row(self, **what: Any) -> dict[str, Any]:
        """The first row with these values, such as ``row(method="rollout")``.

        Raises:
            ValueError: If there is none.
        """
        for row in self.rows:
            if all(row.get(name) == value for name, value in what.items()):
                return row
        raise ValueError(f"no row has {what}")

    def __str__(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        cells = [[_shown(row[name]) for name in names] for row in self.rows]
        numbers = [all(not isinstance(row[name], str) for row in self.rows) for name in names]
        widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
        lines = [_line(names, widths, numbers), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        lines += [_line(line, widths, numbers) for line in cells]
        return "\n".join(lines + (["", self.note] if self.note else []))

    def _repr_html_(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(row[name]))}</td>" for name in names) + "</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self.note)}</p>"


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _line(cells: list[str], widths: list[int], numbers: list[bool]) -> str:
    parts = (f"{c:>{w}}" if number else f"{c:<{w}}" for c, w, number in zip(cells, widths, numbers, strict=True))
    return f"| {' | '.join(parts)} |"
