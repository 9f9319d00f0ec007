"""Changes between two states of a database, as a multiset that does not depend on the ids of new rows.

Tables have a primary key `id INTEGER PRIMARY KEY AUTOINCREMENT`, which is never used again, or none. A row that was
there is known by its id; a row that was added is known by its content, in which a reference to another added row is
replaced by a digest of that row's content.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Literal

_DEPTH = 6
"""Longest chain of references between added rows that is told apart."""
_CUT = "..."


@dataclass(frozen=True)
class Change:
    """One change: a row added or removed, or one cell of a row changed."""

    table: str
    what: Literal["added", "removed", "changed"]
    row: Hashable
    """Id of a row that was there; content of a row that was added, or that has no id."""
    column: str = ""
    value: Hashable = None
    """New value of a changed cell."""


def changes(
    before: sqlite3.Connection, after: sqlite3.Connection, unjudged: Collection[str]
) -> Counter[Change]:
    """Return the changes that lead from one state to another; `unjudged` names tables, and columns as `table.column`."""
    counts: Counter[Change] = Counter()
    for table in _tables(before):
        if table in unjudged:
            continue
        columns = [name for name in _columns(before, table) if f"{table}.{name}" not in unjudged]
        if "id" in columns:
            counts.update(_of_rows(before, after, table, columns))
        else:
            old, new = (
                Counter(
                    _Contents(before, db).row(table, columns, row)
                    for row in _rows(db, table, columns)
                )
                for db in (before, after)
            )
            counts.update(Change(table, "removed", row) for row in (old - new).elements())
            counts.update(Change(table, "added", row) for row in (new - old).elements())
    return counts


def _of_rows(
    before: sqlite3.Connection, after: sqlite3.Connection, table: str, columns: list[str]
) -> list[Change]:
    place = columns.index("id")
    old, new = ({row[place]: row for row in _rows(db, table, columns)} for db in (before, after))
    listed = [Change(table, "removed", key) for key in old.keys() - new.keys()]
    contents = _Contents(before, after)
    for key, row in new.items():
        if key not in old:
            listed.append(Change(table, "added", contents.row(table, columns, row)))
            continue
        for column, was, now in zip(columns, old[key], row, strict=True):
            if was != now:
                value = contents.cell(table, column, now)
                listed.append(Change(table, "changed", key, column, value))
    return listed


class _Contents:
    """Contents of rows of a state, without the ids of added rows: a reference to one is the digest of its content.

    Each is computed once. References deeper than `_DEPTH` are cut, so that rows may refer to each other.
    """

    def __init__(self, before: sqlite3.Connection, after: sqlite3.Connection) -> None:
        self._before, self._after = before, after
        self._digests: dict[tuple[str, Hashable, int], str] = {}

    def row(
        self, table: str, columns: list[str], row: tuple[Hashable, ...], depth: int = 0
    ) -> tuple[tuple[str, Hashable], ...]:
        """Return the content of an added row, without its id."""
        return tuple(
            (column, self.cell(table, column, value, depth))
            for column, value in zip(columns, row, strict=True)
            if column != "id"
        )

    def cell(self, table: str, column: str, value: Hashable, depth: int = 0) -> Hashable:
        """Return the value of a cell; where it refers to an added row, the digest of that row's content."""
        target = _references(self._after, table).get(column)
        if value is None or target is None:
            return value
        if self._before.execute(f"SELECT 1 FROM {target} WHERE id = ?", (value,)).fetchone():
            return value
        if depth == _DEPTH:
            return _CUT
        key = target, value, depth
        if key not in self._digests:
            columns = _columns(self._after, target)
            rows = self._after.execute(f"SELECT * FROM {target} WHERE id = ?", (value,)).fetchall()
            contents = [self.row(target, columns, tuple(row), depth + 1) for row in rows]
            self._digests[key] = hashlib.sha256(repr(contents).encode()).hexdigest()
        return self._digests[key]


def _tables(db: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in db.execute(query)]


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _references(db: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the tables that the columns of a table refer to."""
    return {row[3]: row[2] for row in db.execute(f"PRAGMA foreign_key_list({table})")}


def _rows(db: sqlite3.Connection, table: str, columns: list[str]) -> list[tuple[Hashable, ...]]:
    return [tuple(row) for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}")]
