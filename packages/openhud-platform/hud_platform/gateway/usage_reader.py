"""Token counts read from a provider's response while it is forwarded, streamed or not.
Only the first and the last bytes are buffered: counts are at the start or the end of a response. Quotes inside JSON
text are escaped, so text written by a model cannot be mistaken for a count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hud.inference.dialects.dialect import Dialect
from hud_platform.gateway.ledger import MOST_TOKENS, Meter

_HEAD, _TAIL = 16_384, 65_536
_DECODER = json.JSONDecoder()


class UsageReader:
    """Reader of the token counts in one response."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._head = bytearray()
        self._tail = bytearray()
        self._events = 0

    def take(self, data: bytes) -> None:
        """Add a chunk of the response."""
        self._events += data.count(b"data:")
        if len(self._head) < _HEAD:
            self._head += data
            return
        self._tail += data
        if len(self._tail) > 2 * _TAIL:
            del self._tail[:-_TAIL]

    def read(self, meter: Meter) -> None:
        """Write the counts that were found to `meter`."""
        meter.guess += self._events  # Estimate: one event is about one token.
        # Joined, so that a count across the boundary of the two buffers is found.
        for counts in _counts(bytes(self._head + self._tail), self._dialect.usage_fields):
            usage = self._dialect.token_counts(_checked(counts))
            # A later event may hold only some of the counts.
            meter.prompt_tokens = usage.prompt or meter.prompt_tokens
            meter.completion_tokens = usage.completion or meter.completion_tokens
            meter.cached_tokens = usage.cached or meter.cached_tokens


def _counts(data: bytes, fields: Iterable[str]) -> list[dict[str, Any]]:
    counts_by_place: list[tuple[int, dict[str, Any]]] = []
    for mark in [f'"{name}":'.encode() for name in fields]:
        at = data.find(mark)
        while at >= 0:
            start = at + len(mark)
            text = data[start : start + 4096].decode("utf-8", "replace").lstrip()
            try:
                value, _ = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                counts_by_place.append((at, value))
            at = data.find(mark, start)
    return [
        value
        for _, value in sorted(counts_by_place, key=lambda place_and_counts: place_and_counts[0])
    ]


def check_usage(event: dict[str, Any], fields: tuple[str, ...]) -> None:
    """Remove invalid counts from the fields of an event, outside or one level inside."""
    for place in (event, *(value for value in event.values() if isinstance(value, dict))):
        for name in fields:
            if name in place:
                counts = place[name]
                place[name] = _checked(counts) if isinstance(counts, dict) else None


def _checked(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts without invalid values: the provider's response is untrusted."""
    checked: dict[str, Any] = {}
    for name, value in counts.items():
        if name.endswith("_details"):
            checked[name] = _checked(value) if isinstance(value, dict) else None
        elif type(value) is int and value >= 0:
            checked[name] = min(value, MOST_TOKENS)
    return checked
