"""Tables in Markdown, which a terminal shows as well as a page."""

from collections.abc import Collection, Mapping, Sequence


def markdown_table(rows: Sequence[Mapping[str, str]], right: Collection[str] = ()) -> str:
    """Return rows of named cells as a Markdown table, padded so that its columns line up in a terminal, too.

    >>> print(markdown_table([{"name": "rollout", "ms": "9"}, {"name": "center"}], right=["ms"]))
    | name    | ms |
    |:--------|---:|
    | rollout |  9 |
    | center  |    |

    Args:
        rows: Cells by the name of their column; a row may leave columns out.
        right: Columns aligned to the right, such as numbers.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column in right else "<" for column in columns]
    written = [
        " | ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True))
        for line in lines
    ]
    rules = [
        "-" * width + "-:" if side == ">" else ":-" + "-" * width for side, width in zip(sides, widths, strict=True)
    ]
    return "\n".join([f"| {written[0]} |", f"|{'|'.join(rules)}|", *(f"| {line} |" for line in written[1:])])
