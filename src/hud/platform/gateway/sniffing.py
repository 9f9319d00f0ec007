"""Token counts out of a provider's answer while it passes, whatever its dialect and whether it streams.

Only the first and the last bytes are kept: counts stand at the ends of answers. Quotes inside of JSON text are escaped,
so what a model writes cannot be taken for a count.
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
from hud.platform.gateway.ledger import Meter

_HEAD, _TAIL = 16_384, 65_536
_MARKS = (b'"usage":', b'"usageMetadata":')
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
    counts = _checked(counts)
    found = _dialect(counts)(counts)
    # An event may repeat some of the counts alone.
    meter.prompt_tokens = found.prompt or meter.prompt_tokens
    meter.completion_tokens = found.completion or meter.completion_tokens
    meter.cached_tokens = found.cached or meter.cached_tokens


def _dialect(counts: dict[str, Any]) -> Callable[[dict[str, Any]], TokenCounts]:
    if "promptTokenCount" in counts or "candidatesTokenCount" in counts:
        return gemini.token_counts
    if "input_tokens_details" in counts:
        return responses.token_counts
    if "input_tokens" in counts or "output_tokens" in counts:
        return anthropic.token_counts
    return chat_completions.token_counts


def _checked(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts without values that are none: a provider may write anything there."""
    kept: dict[str, Any] = {}
    for name, value in counts.items():
        if name.endswith("_details"):
            kept[name] = _checked(value) if isinstance(value, dict) else None
        elif type(value) is int and value >= 0:
            kept[name] = value
    return kept
