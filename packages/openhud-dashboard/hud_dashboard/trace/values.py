"""Conversion of untrusted values in payloads to displayable ones: text, number, time, or None."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hud import exact_json
from hud.errors import UsageError

LONGEST_JSON = 100_000
"""Maximum length of a value as JSON for a template, which truncates it further."""


def as_json(value: Any, limit: int = LONGEST_JSON, *, indent: bool = True) -> str:
    """Return a value as JSON for display, truncated at `limit`."""
    try:
        text = exact_json.dumps(value, option=exact_json.OPT_INDENT_2 if indent else 0).decode()
    except exact_json.JSONEncodeError:
        return "This value is nested too deeply to be shown."
    return text if len(text) <= limit else f"{text[:limit]}…"


def indented_json(value: Any) -> str:
    """Return a value as indented JSON, complete."""
    return exact_json.dumps(value, option=exact_json.OPT_INDENT_2).decode()


def whole_json(value: Any) -> bytes:
    """Return a value as complete JSON. Raises `UsageError` if it is nested too deeply."""
    try:
        return exact_json.dumps(value)
    except exact_json.JSONEncodeError:
        pass
    try:
        return json.dumps(value).encode()
    except (RecursionError, ValueError):
        raise UsageError("This step is nested too deeply to be written as JSON.") from None


def dict_of(value: Any) -> dict[str, Any]:
    """Return an object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def several(value: Any) -> list[Any]:
    """Return a list; a single value becomes a list of one item."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def text_of(value: Any) -> str | None:
    """Return a string, or the JSON of another value; None for None."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else as_json(value)


def number_of(value: Any) -> float | None:
    """Return a finite number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e18 else None


def moment_of(value: Any) -> datetime | None:
    """Return a time in UTC; None for an invalid value."""
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
