"""A tool that is a question to the recording: a name, arguments, and SQL whose rows are shown as a table."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 20
LONGEST_CELL = 200


@dataclass(frozen=True)
class Query:
    """One tool. Arguments are words; one that ends in `?` may be left out, and is then empty."""

    name: str
    description: str
    arguments: str
    sql: str

    @property
    def names(self) -> list[str]:
        """The names of the arguments."""
        return [word.rstrip("?") for word in self.arguments.split()]

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        required = [word for word in self.arguments.split() if not word.endswith("?")]
        return {
            "type": "object",
            "properties": {name: {"type": "string"} for name in self.names},
            "required": required,
            "additionalProperties": False,
        }

    def answer(self, database: sqlite3.Connection, values: dict[str, Any]) -> str:
        """Return the rows as text. Raises `ValueError` for arguments that do not fit."""
        if unknown := sorted(values.keys() - set(self.names)):
            raise ValueError(f"There is no argument {unknown[0]!r}.")
        missing = [
            word for word in self.arguments.split() if not word.endswith("?") and word not in values
        ]
        if missing:
            raise ValueError(f"Argument {missing[0]!r} is missing.")
        bound = {name: str(values.get(name, "")).strip() for name in self.names}
        try:
            return table(database.execute(self.sql, bound))
        except sqlite3.Error as error:
            raise ValueError(f"{error}.") from error


def table(cursor: sqlite3.Cursor) -> str:
    """Return rows as text: a line of names, then a line for each row."""
    names = [column[0] for column in cursor.description]
    rows = cursor.fetchmany(MOST_ROWS + 1)
    if not rows:
        return "(none)"
    lines = [" | ".join(names)]
    lines += [" | ".join(_cell(value) for value in row) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append("(more rows; narrow it down)")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if "\n" in text:
        return "\n" + text
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."
