"""Tables of records in pages of the documentation, each found by its first line."""

from __future__ import annotations

from pathlib import Path


def write_table(page: Path, table: str) -> None:
    """Put a table in the place of the one that begins with the same line. Raises `ValueError` where there is none."""
    lines, first = page.read_text().splitlines(), table.splitlines()[0]
    start = lines.index(first)
    end = next(
        (place for place in range(start, len(lines)) if not lines[place].startswith("|")),
        len(lines),
    )
    page.write_text("\n".join([*lines[:start], *table.splitlines(), *lines[end:]]) + "\n")
