"""Plain tables: columns as wide as their widest cell, numbers to the right, nothing wider than a page."""

from collections.abc import Sequence
from textwrap import wrap

WIDTH = 100


def columns(rows: Sequence[Sequence[str]], align: str, *, gap: str = "  ") -> list[str]:
    """One line per row; `align` has `<` or `>` for each column. The last column is cut to fit the page."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = [
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ]
        lines.append(cut(gap.join(cells).rstrip()))
    return lines


def cut(line: str) -> str:
    """At most `WIDTH` characters; three dots stand for the rest."""
    return line if len(line) <= WIDTH else line[: WIDTH - 3].rstrip() + "..."


def paragraph(text: str, *, indent: str = "", first: str | None = None) -> list[str]:
    """Text wrapped to the page; `first` is the indentation of the first line."""
    return wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
