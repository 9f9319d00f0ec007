"""Cached responses of a training session: a repeated request with the same idempotency key gets the first response."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hud.train.contributor import Contributor

MAX_RESPONSES = 64


class IdempotentResponses:
    """Cache of the newest `MAX_RESPONSES` responses, each with the client that received it."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[str, ...], tuple[Any, Contributor]] = OrderedDict()

    def get(self, *key: str) -> tuple[Any, Contributor] | None:
        """Return the response to a request and its client; None if it is not cached."""
        return self._cached.get(key)

    def add(self, response: Any, client: Contributor, *key: str) -> None:
        """Cache a response under the strings that identify its request; the oldest one is evicted."""
        self._cached[key] = (response, client)
        while len(self._cached) > MAX_RESPONSES:
            self._cached.popitem(last=False)

    def clear(self) -> None:
        """Delete every response."""
        self._cached.clear()
