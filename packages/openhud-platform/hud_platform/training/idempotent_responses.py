"""Idempotency keys of a training session: a repeated request gets the first one's response, another one under its key none."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

from pydantic import BaseModel

from hud.client.contributor import Contributor
from hud.errors import ConflictError

MAX_RESPONSES = 64
_NO_CONTENT = {"idempotency_key", "measured_reward"}
"""Fields that may differ in a repeated request: a resumed run may measure the reward of a step again."""


def request_digest(body: BaseModel, client: Contributor) -> str:
    """Return a digest of a request's content and of the holder of its key: equal for a request that is repeated."""
    content = body.model_dump_json(exclude=_NO_CONTENT)
    return hashlib.sha256(f"{client.key_holder}\n{content}".encode()).hexdigest()


def check_repeated(key: str, digest: str, recorded: str | None) -> None:
    """Raise `ConflictError` for a request under the key of another one; `known` None: that one's content is not known."""
    if recorded not in (None, digest):
        raise ConflictError(
            f"The idempotency key {key!r} was sent before, with another body or by the holder of another key. Give each "
            "request a key of its own."
        )


class IdempotentResponses:
    """Cache of the newest `MAX_RESPONSES` responses, each with the client that received it."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[str, ...], tuple[str, Any, Contributor]] = OrderedDict()

    def get(self, digest: str, *key: str) -> tuple[Any, Contributor] | None:
        """Return the response to a request and its client; None if it is not cached.

        The strings of `key` identify the request, the last one is its idempotency key. Raises `ConflictError` if that was
        sent with a request of another digest.
        """
        cached = self._cached.get(key)
        if cached is None:
            return None
        first, response, client = cached
        check_repeated(key[-1], digest, first)
        return response, client

    def add(self, digest: str, response: Any, client: Contributor, *key: str) -> None:
        """Cache a response; the oldest one is evicted."""
        self._cached[key] = (digest, response, client)
        while len(self._cached) > MAX_RESPONSES:
            self._cached.popitem(last=False)

    def clear(self) -> None:
        """Delete every response."""
        self._cached.clear()
