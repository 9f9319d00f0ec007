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


async def pages(
    path: str, most: int | None = None, *, first: int = 0
) -> AsyncIterator[dict[str, Any]]:
    """Yield the items of a paged route from the `first` on, page by page, at most `most` of them."""
    offset, end = first, None if most is None else first + most
    while end is None or offset < end:
        limit = PAGE if end is None else min(PAGE, end - offset)
        page = await connect().get(path, params={"limit": limit, "offset": offset})
        for item in page["items"]:
            yield item
        offset += len(page["items"])
        if not page["items"] or offset >= page["total"]:
            return
