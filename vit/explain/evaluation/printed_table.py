"""Tables of measurements that print themselves."""

from dataclasses import dataclass
from html import escape
from typing import Any

from vit.explain.evaluation.confidence import Interval
from vit.support.markdown import markdown_table

__all__ = ["Interval", "Table"]


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
            ValueError: If there is no such row.
        """
        for row in self.rows:
            if all(row.get(name) == value for name, value in what.items()):
                return row
        known = {name: list(dict.fromkeys(row.get(name) for row in self.rows)) for name in what}
        raise ValueError(f"no row has {what}: choose from {known}")

    def __str__(self) -> str:
        words = {name for row in self.rows for name, value in row.items() if isinstance(value, str)}
        cells = [{name: _format(value) for name, value in row.items()} for row in self.rows]
        table = markdown_table(cells, right={name for row in self.rows for name in row} - words)
        return f"{table}\n\n{self.note}" if self.note else table

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_format(row.get(name, '')))}</td>" for name in names) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self.note)}</p>"


def _format(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
