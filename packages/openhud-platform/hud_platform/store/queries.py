"""Rows as plain data, ids by their starts, and batches of ids for the parameter limit of a statement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from hud.trace.ids import plain

IDS_AT_ONCE = 500
_START = re.compile("[0-9a-f]{4,31}")
"""Start of an id: hexadecimal, so that "g" sorts after every continuation."""
T = TypeVar("T")
Query = sa.Select[*tuple[Any, ...]]
Row = sa.Row[*tuple[Any, ...]]


def in_parts(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `ids` in slices of at most `IDS_AT_ONCE`."""
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def begins_with(column: sa.ColumnElement[str], reference: str) -> sa.ColumnElement[bool]:
    """Return the condition for an id or its start: a range, which uses the index, unlike LIKE."""
    wanted = plain(reference)
    if _START.fullmatch(wanted):
        return sa.and_(column >= wanted, column < wanted + "g")
    return column == wanted


def as_dict(row: Row) -> dict[str, Any]:
    """Return a row as a dict by column. The keys of `Row._asdict` are not plain strings, which `exact_json` refuses."""
    return {str(name): value for name, value in row._mapping.items()}
