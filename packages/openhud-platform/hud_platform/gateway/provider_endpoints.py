"""Endpoints that a provider's server does not have, such as OpenAI's responses at a server with chat completions alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

import aiohttp
from yarl import URL

REMEMBERED_SECONDS = 600.0
"""Time until an absent endpoint is called again: servers are upgraded."""
_STATUSES = frozenset((404, 405, 501))
"""Statuses of servers for endpoints that they do not have."""


class AbsentEndpoints:
    """Absent endpoints of this process's providers, by URL."""

    def __init__(self) -> None:
        self._until: dict[URL, float] = {}
        """Time at which an endpoint is called again."""

    def remembers(self, endpoint: URL) -> bool:
        """Return True for an endpoint that was absent lately."""
        return self._until.get(endpoint, 0.0) > time.monotonic()

    async def confirm(
        self,
        session: aiohttp.ClientSession,
        endpoint: URL,
        headers: Mapping[str, str],
        status: int,
    ) -> bool:
        """Return True if a request with the error `status` was one to an absent endpoint.

        404 is also the status of a model, or of an earlier answer, that is unknown. An empty request tells them apart: an
        endpoint that exists misses its fields.
        """
        if status not in _STATUSES:
            return False
        async with session.post(
            endpoint, data=b"{}", headers=headers, allow_redirects=False
        ) as response:
            absent = response.status in _STATUSES
        if absent:
            now = time.monotonic()
            self._until = {url: until for url, until in self._until.items() if until > now}
            self._until[endpoint] = now + REMEMBERED_SECONDS
        return absent
