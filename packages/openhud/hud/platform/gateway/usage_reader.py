"""Token counts read from a provider's response while it is forwarded, in any dialect, streamed or not.
Only the first and the last bytes are buffered: counts are at the start or the end of a response. Quotes inside JSON
text are escaped, so text written by a model cannot be mistaken for a count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hud.inference.dialects.anthropic import answer as anthropic
from hud.inference.dialects.chat_completions import answer as chat_completions
from hud.inference.dialects.gemini import answer as gemini
from hud.inference.dialects.responses import answer as responses
from hud.inference.prices import TokenCounts
from hud.platform.gateway.ledger import MOST_TOKENS, Meter

_HEAD, _TAIL = 16_384, 65_536
_FIELDS = ("usage", "usageMetadata", "usage_metadata")
_MARKS = tuple(f'"{name}":'.encode() for name in _FIELDS)
_GEMINI = frozenset(
    ("promptTokenCount", "candidatesTokenCount", "prompt_token_count", "candidates_token_count")
)
"""Counts of Gemini, in camel or in snake case."""
_DECODER = json.JSONDecoder()


class UsageReader:
    """Reader of the token counts in one response."""

    def __init__(self) -> None:
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
        for counts in _counts(bytes(self._head + self._tail)):
            _read_counts(counts, meter)


def _counts(data: bytes) -> list[dict[str, Any]]:
    counts_by_place: list[tuple[int, dict[str, Any]]] = []
    for mark in _MARKS:
        at = data.find(mark)
        while at >= 0:
            start = at + len(mark)
            text = data[start : start + 4096].decode("utf-8", "replace").lstrip()
            try:
                value, _ = _DECODER.raw_decode(text)
            except ValueError:
                value = None
            if isinstance(value, dict):
                counts_by_place.append((at, value))
            at = data.find(mark, start)
    return [
        value
        for _, value in sorted(counts_by_place, key=lambda place_and_counts: place_and_counts[0])
    ]


def check_usage(event: dict[str, Any]) -> None:
    """Remove invalid counts from an event of any dialect."""
    for name in _FIELDS:
        if name in event:
            counts = event[name]
            event[name] = _checked(counts) if isinstance(counts, dict) else None
    message = event.get("message")
    if isinstance(message, dict):  # Anthropic's first event.
        check_usage(message)


def _read_counts(counts: dict[str, Any], meter: Meter) -> None:
    counts = _checked(counts)
    usage = _dialect(counts)(counts)
    # A later event may hold only some of the counts.
    meter.prompt_tokens = usage.prompt or meter.prompt_tokens
    meter.completion_tokens = usage.completion or meter.completion_tokens
    meter.cached_tokens = usage.cached or meter.cached_tokens


def _dialect(counts: dict[str, Any]) -> Callable[[dict[str, Any]], TokenCounts]:
    if not _GEMINI.isdisjoint(counts):
        return gemini.token_counts
    if "input_tokens_details" in counts:
        return responses.token_counts
    if "input_tokens" in counts or "output_tokens" in counts:
        return anthropic.token_counts
    return chat_completions.token_counts


def _checked(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts without invalid values: the provider's response is untrusted."""
    checked: dict[str, Any] = {}
    for name, value in counts.items():
        if name.endswith("_details"):
            checked[name] = _checked(value) if isinstance(value, dict) else None
        elif type(value) is int and value >= 0:
            checked[name] = min(value, MOST_TOKENS)
    return checked
