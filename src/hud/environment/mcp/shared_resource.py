"""Something that all runs of this process use together: brought up by the first, replaced when it is lost.

It lives as long as its event loop: whatever the loop's end cancels takes it down.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class _Losable(Protocol):
    def fault(self) -> str | None: ...
    async def close(self) -> None: ...


Thing = TypeVar("Thing", bound=_Losable)


class Shared(Generic[Thing]):
    """One `Thing` for each event loop."""

    def __init__(self, bring_up: Callable[[], Awaitable[Thing]]) -> None:
        self._bring_up = bring_up
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Place[Thing]] = (
            weakref.WeakKeyDictionary()
        )

    async def get(self) -> Thing:
        """Return the one that is up; bring one up where there is none, or where it was lost."""
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is None:
            place = self._places[loop] = _Place()
        async with place.lock:
            if place.thing is not None and place.thing.fault() is not None:
                lost, place.thing = place.thing, None
                await lost.close()
            if place.thing is None:
                place.thing = await self._bring_up()
            return place.thing


class _Place(Generic[Thing]):
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.thing: Thing | None = None
