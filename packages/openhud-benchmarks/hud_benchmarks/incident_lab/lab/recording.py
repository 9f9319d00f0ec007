"""A recording: what the tools of an incident answer from, as one SQLite database.

Tables come into being as rows are added to them. Nothing in a recording says what was broken on purpose.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COLUMNS = {
    "issues": "issue service error message place events level first_seen last_seen status first_release last_release",
    "events": "event issue time service release container transaction_name error message trace url",
    "frames": "issue error position file function line code variables",
    "breadcrumbs": "issue category message",
    "transactions": "trace time service name status milliseconds",
    "spans": "trace service operation description milliseconds",
    "flag_changes": "time flag before after by",
    "pg_stat_activity": "time service pid state wait_event_type wait_event transaction_seconds query",
    "pg_locks": "service mode granted locks",
    "pg_connections": "service state connections",
    "pg_log": "time service message",
    "orders_by_status": "status orders",
    "cache_keys": "key type size ttl",
    "queue_messages": "queue position message",
    "cache_info": "field value",
    "cache_clients": "name command idle",
    "cache_slowlog": "command microseconds",
}
"""Tables that are there also where nothing is in them."""
_LONGEST_VALUE = 1 << 14
"""Bytes of a text or a row that a query of an agent makes; rows of recordings have less than 1,000. A function makes a gigabyte
of a number, and a sort of many long rows writes as much."""


def clock(seconds: float | None = None) -> str:
    """Return a time as recordings say it: UTC, to the millisecond."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


class Recording:
    """A recording that is being made. Used from one thread at a time."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {table: [] for table in COLUMNS}

    def add(self, table: str, **row: Any) -> None:
        """Add a row."""
        self.rows.setdefault(table, []).append(row)

    def add_all(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows."""
        self.rows.setdefault(table, []).extend(dict(row) for row in rows)

    def database(self) -> sqlite3.Connection:
        """Return it as a database in memory."""
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        for table, rows in self.rows.items():
            declared = COLUMNS.get(table, "").split()
            columns = declared or list(dict.fromkeys(name for row in rows for name in row))
            if not columns:
                continue
            names = ", ".join(f'"{name}"' for name in columns)
            marks = ", ".join("?" for _ in columns)
            connection.execute(f'CREATE TABLE "{table}" ({names})')
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({marks})',
                ([_plain(row.get(name)) for name in columns] for row in rows),
            )
        connection.commit()
        return connection

    def save(self, file: Path) -> None:
        """Write it to a file."""
        with self.database() as database:
            file.write_bytes(gzip.compress(database.serialize(), 9, mtime=0))


def opened(file: Path) -> sqlite3.Connection:
    """Return a recording's database, which cannot be written to. Raises `ValueError` for what is no recording."""
    try:
        data = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is no recording: {error}") from error
    if not data.startswith(b"SQLite format 3"):
        raise ValueError(f"{file} is no recording")
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.deserialize(data)
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    return connection


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str)
    return str(value)
