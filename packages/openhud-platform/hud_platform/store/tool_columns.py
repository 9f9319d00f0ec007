"""Columns of `runs` with the numbers of tool calls, and `hud.trace.tool_counts` from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.trace import CALLS, TOOL_CALLS

_KINDS = {TOOL_CALLS: CALLS, "tool_errors": "error", "tool_time_outs": "time-out"}
"""Key of `tool_counts` for each column."""


def tool_columns(counts: object) -> dict[str, int]:
    """Return the columns for `tool_counts`; zeros for None or counts of another form."""
    recorded = counts if isinstance(counts, dict) else {}
    values = {column: recorded.get(kind, 0) for column, kind in _KINDS.items()}
    valid = all(type(value) is int and 0 <= value < 2**31 for value in values.values())
    return values if valid else dict.fromkeys(_KINDS, 0)


def tool_counts_of(run: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the `tool_counts` of a row of `runs`; None without a call."""
    counts = {kind: run[column] for column, kind in _KINDS.items() if run[column]}
    return counts or None
