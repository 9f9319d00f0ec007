"""Asking the platform from a command: one event loop for the whole command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from hud.client import connect

T = TypeVar("T")
PAGE = 500


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    return asyncio.run(work)


async def pages(path: str, most: int | None = None) -> AsyncIterator[dict[str, Any]]:
    """Yield the items of a paged route, page by page, at most `most` of them."""
    offset = 0
    while most is None or offset < most:
        limit = PAGE if most is None else min(PAGE, most - offset)
        page = await connect().get(path, params={"limit": limit, "offset": offset})
        for item in page["items"]:
            yield item
        offset += len(page["items"])
        if not page["items"] or offset >= page["total"]:
            return
