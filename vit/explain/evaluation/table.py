"""Tables of measurements that print themselves, and means with confidence intervals."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.markdown import markdown_table

RESAMPLES = 1000


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap(values: Tensor) -> Interval:
    """Average one number per image, with the interval from resampling the images: (B,) -> Interval.

    It is from the 2.5 to the 97.5 % quantile of the means of 1,000 resamples (Efron 1979). The same images are drawn
    for every array of the same length, so intervals of differences are paired. One image has no interval: -inf to inf.

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
    """Rows of named values, printed as Markdown and as HTML in a notebook.

    >>> print(Table([{"method": "rollout", "hits": 0.5}], note="7 images"))
    | method  |  hits |
    |:--------|------:|
    | rollout | 0.500 |
    <BLANKLINE>
    7 images
    """

    rows: list[dict[str, Any]]
    note: str = ""

    def column(self, name: str) -> list[Any]:
        """Return the values of one column."""
        return [row[name] for row in self.rows]

    def row(self, **what: Any) -> dict[str, Any]:
        """Return the first row with these values, such as ``row(method="rollout")``.

        Raises:
            ValueError: If there is none.
        """
        for row in self.rows:
            if all(row.get(name) == value for name, value in what.items()):
                return row
        raise ValueError(f"no row has {what}")

    def __str__(self) -> str:
        words = {name for row in self.rows for name, value in row.items() if isinstance(value, str)}
        cells = [{name: _format(value) for name, value in row.items()} for row in self.rows]
        table = markdown_table(cells, right={name for row in self.rows for name in row} - words)
        return f"{table}\n\n{self.note}" if self.note else table

    def _repr_html_(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_format(row[name]))}</td>" for name in names) + "</tr>" for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self.note)}</p>"


def _format(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
