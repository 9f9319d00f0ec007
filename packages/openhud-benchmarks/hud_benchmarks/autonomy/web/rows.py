"""Rows of a database, written by column. Table and column names are the caller's own, never a user's."""

from __future__ import annotations

import sqlite3
from typing import Any


def insert(db: sqlite3.Connection, table: str, **values: Any) -> int:
    """Insert a row and return its id."""
    marks = ", ".join("?" * len(values))
    statement = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
    return db.execute(statement, tuple(values.values())).lastrowid or 0


def update(db: sqlite3.Connection, table: str, row: int, **values: Any) -> None:
    """Set columns of the row with an id."""
    columns = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE {table} SET {columns} WHERE id = ?", (*values.values(), row))
