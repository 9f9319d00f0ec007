"""Files of JSON lines, single JSON documents and Parquet files, read as rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.errors import UsageError

_ROWS_AT_ONCE = 1_000
_LEADING = 50
"""Rows that are read to recognize a format."""


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: its lines, the elements of its one document, or the rows of a Parquet file.

    Raises `UsageError` for other content, and without the package that reads it.
    """
    if path.suffix == ".parquet":
        yield from parquet_rows(path)
        return
    with path.open("rb") as file:
        start = file.read(1)
        file.seek(0)
        if start == b"[":
            yield from _elements(file.read(), path)
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = exact_json.loads(line)
            except exact_json.JSONDecodeError as error:
                if number == 1:  # A document over several lines.
                    yield from _elements(line + file.read(), path)
                    return
                raise UsageError(f"Line {number} of {path} is no JSON: {error}.") from error
            if isinstance(row, dict):
                yield row


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file. Raises `UsageError` for another file, and without pyarrow."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError(f"Reading {path} needs pyarrow: pip install pyarrow.") from None
    try:
        for batch in ParquetFile(path).iter_batches(_ROWS_AT_ONCE):
            yield from batch.to_pylist()
    except ArrowException as error:
        raise UsageError(f"{path} is no Parquet file: {error}.") from error


def leading_rows(path: Path) -> list[dict[str, Any]]:
    """Return the first rows of a file, and none of a folder or a file with other content."""
    rows: list[dict[str, Any]] = []
    if not path.is_file() or path.suffix not in (".jsonl", ".json", ".ndjson", ".parquet"):
        return rows
    try:
        for row in rows_of(path):
            rows.append(row)
            if len(rows) == _LEADING:
                break
    except UsageError:
        if path.suffix == ".parquet":
            raise
    return rows


def time_of(value: Any) -> datetime | None:
    """Return a time given as ISO text, or as seconds, milliseconds or nanoseconds since 1970; None for anything else."""
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    seconds = value
    while seconds > 1e11:  # The year 5138, in seconds.
        seconds /= 1000
    return datetime.fromtimestamp(seconds, UTC)


def _elements(document: bytes, path: Path) -> Iterator[dict[str, Any]]:
    try:
        value = exact_json.loads(document)
    except exact_json.JSONDecodeError as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    yield from (
        row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)
    )
