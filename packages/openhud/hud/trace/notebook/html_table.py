"""HTML tables of objects in a notebook. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 50
"""Maximum rows of a table; a line below has the number of further ones."""
LONGEST = 600
"""Maximum characters of a long text in a cell."""


def titled(title: str, *parts: str) -> str:
    """Return a block with a bold title above `parts`, which are HTML."""
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}</div>"


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; values are shown as text, None as a dash."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>{len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(row: Iterable[object]) -> str:
    texts = ("–" if cell is None else str(cell)[:LONGEST] for cell in row)
    return "".join(f'<td style="text-align:left">{escape(text)}</td>' for text in texts)
