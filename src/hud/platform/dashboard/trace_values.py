"""Values of payloads that anybody may have sent, as what a page can show: a text, a number, a moment, or nothing."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import orjson

from hud.errors import UsageError

LONGEST_JSON = 100_000
"""Characters of a value as JSON that are handed to a template, which cuts them further."""


def as_json(value: Any, limit: int = LONGEST_JSON, *, indent: bool = True) -> str:
    """Return a value as JSON to be looked at, cut where it is very long."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except orjson.JSONEncodeError:
        return "This is nested too deep to be shown."
    return text if len(text) <= limit else f"{text[:limit]}…"


def exact_json(value: Any) -> str:
    """Return a value as JSON in lines, with integers of any size, which orjson refuses beyond 64 bits."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def whole_json(value: Any) -> bytes:
    """Return a value as JSON, all of it. Raises `UsageError` where it is nested deeper than JSON can be written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        pass
    try:
        return json.dumps(value).encode()
    except (RecursionError, ValueError):
        raise UsageError("This step is nested too deep to be written as JSON.") from None


def dict_of(value: Any) -> dict[str, Any]:
    """Return an object; an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def several(value: Any) -> list[Any]:
    """Return a list; of one, where clients send what stands alone without one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def text_of(value: Any) -> str | None:
    """Return a text, or JSON of what is none; None for nothing."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else as_json(value)


def number_of(value: Any) -> float | None:
    """Return a finite number; None for what is none, or for one that counts nothing real."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and abs(value) < 1e18 else None


def moment_of(value: Any) -> datetime | None:
    """Return a moment, in UTC; None where there is none that can be read."""
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from one moment to another; None where one of them is unknown."""
    return None if start is None or end is None else (end - start).total_seconds()
