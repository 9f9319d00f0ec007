"""Token counts out of a provider's answer while it passes, whatever its dialect and whether it streams.

Only the first and the last bytes are kept: counts stand at the ends of answers. Quotes inside of JSON text are escaped,
so what a model writes cannot be taken for a count.
"""

from __future__ import annotations

import json
from typing import Any

from hud.platform.gateway.ledger import Meter

_HEAD, _TAIL = 16_384, 65_536
_MARKS = (b'"usage":', b'"usageMetadata":')
_PROMPT = ("prompt_tokens", "input_tokens", "promptTokenCount")
_COMPLETION = ("completion_tokens", "output_tokens", "candidatesTokenCount")
_DECODER = json.JSONDecoder()


class Sniffer:
    """Reads along."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._events = 0

    def take(self, data: bytes) -> None:
        """See a piece of the answer."""
        self._events += data.count(b"data:")
        if len(self._head) < _HEAD:
            self._head += data
            return
        self._tail += data
        if len(self._tail) > 2 * _TAIL:
            del self._tail[:-_TAIL]

    def read(self, meter: Meter) -> None:
        """Put the counts that were seen into `meter`."""
        meter.guess += self._events  # A chunk is about a token.
        # Joined, so that a count which begins in one and ends in the other is found.
        for counts in _counts(bytes(self._head + self._tail)):
            _read_counts(counts, meter)


def _counts(data: bytes) -> list[dict[str, Any]]:
    found: list[tuple[int, dict[str, Any]]] = []
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
                found.append((at, value))
            at = data.find(mark, start)
    return [value for _, value in sorted(found, key=lambda one: one[0])]


def _read_counts(counts: dict[str, Any], meter: Meter) -> None:
    prompt, completion = _first(counts, _PROMPT), _first(counts, _COMPLETION)
    cached = _cached(counts)
    if "input_tokens" in counts and "input_tokens_details" not in counts and prompt is not None:
        # Anthropic counts what it read from its cache, and wrote to it, beside the rest.
        prompt += (cached or 0) + (_integer(counts.get("cache_creation_input_tokens")) or 0)
    if prompt:
        meter.prompt_tokens = prompt
    if completion is not None:
        meter.completion_tokens = completion + (_integer(counts.get("thoughtsTokenCount")) or 0)
    if cached:
        meter.cached_tokens = cached


def _cached(counts: dict[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = counts.get(name)
        if isinstance(details, dict):
            return _integer(details.get("cached_tokens"))
    return _integer(counts.get("cache_read_input_tokens")) or _integer(
        counts.get("cachedContentTokenCount")
    )


def _first(counts: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = _integer(counts.get(name))
        if value is not None:
            return value
    return None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
