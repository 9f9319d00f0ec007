"""Requests of a command to the platform, and event loops for its coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

from hud.errors import UsageError

T = TypeVar("T")
PAGE = 1000


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine, also in a thread with a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def model_path(slug: str, *rest: str) -> str:
    """Return the path of a model's routes; raises `UsageError` for a hub id, which has a slash."""
    if "/" in slug:
        raise UsageError(
            f"There is no model {slug!r}: the names of models have no slash (hud models list). "
            f"From the Hugging Face hub: hud models add {slug} --name {slug.rpartition('/')[2].lower()}"
        )
    return "/".join(["/v2/models", *(quote(part, safe="") for part in (slug, *rest))])


def ask(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the platform; raises `HudError` for an error response."""

    from hud.client import connect

    async def send() -> Any:
        call = getattr(connect(), method)
        return await (call(path) if body is None else call(path, body))

    return run(send())


async def recorded_job(reference: str) -> dict[str, Any]:
    """Return a job by its id, the start of one, or `latest`: the newest. Raises `UsageError` where nothing is recorded."""
    from hud.client import connect

    if reference == "latest":
        newest = (await connect().get("/v2/jobs", params={"limit": 1}))["items"]
        if not newest:
            raise UsageError("No job is recorded yet; `hud eval TASKS AGENT` records one.")
        reference = newest[0]["id"]
    job: dict[str, Any] = await connect().get(f"/v2/jobs/{reference}")
    return job


async def pages(
    path: str, most: int | None = None, *, first: int = 0
) -> AsyncIterator[dict[str, Any]]:
    """Yield the items of a paged route from `first` on, page by page, at most `most`."""
    from hud.client import connect

    offset, end = first, None if most is None else first + most
    while end is None or offset < end:
        limit = PAGE if end is None else min(PAGE, end - offset)
        page = await connect().get(path, params={"limit": limit, "offset": offset})
        for item in page["items"]:
            yield item
        offset += len(page["items"])
        if not page["items"] or offset >= page["total"]:
            return
