"""Connections to providers: guarded against private addresses, kept alive, without redirects; one pool for each event
loop and reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

import aiohttp

from hud.outbound import CONNECT_SECONDS, Reach, guarded_session

SILENCE_SECONDS = 600.0
"""Read time-out: maximum pause of a provider between two chunks, for example while a model reasons."""
LONGEST_SECONDS = 3600.0
"""Maximum duration of one response."""


class Connections:
    """HTTP sessions of the gateway."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[
            asyncio.AbstractEventLoop,
            dict[Reach, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]]],
        ] = WeakKeyDictionary()

    async def session(self, reach: Reach) -> aiohttp.ClientSession:
        """Return the running loop's session for a reach; connections are not shared between reaches."""
        sessions = self._sessions.setdefault(asyncio.get_running_loop(), {})
        session_and_owner = sessions.get(reach)
        if session_and_owner is None or session_and_owner[0].closed:
            # An event loop closes its asynchronous generators before it ends; this generator then closes the session.
            opened = _opened(reach)
            session_and_owner = sessions[reach] = (await anext(opened), opened)
        return session_and_owner[0]


async def _opened(reach: Reach) -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with guarded_session(
        reach,
        timeout=aiohttp.ClientTimeout(
            total=LONGEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        ),
        skip_auto_headers={"User-Agent", "Accept", "Accept-Encoding"},
    ) as session:
        yield session
