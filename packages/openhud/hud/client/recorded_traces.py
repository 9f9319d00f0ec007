"""Whole traces of recorded runs, many with each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from hud.client.client import Client

AT_ONCE = 200
"""Traces asked for at once; of large ones an answer has fewer."""


async def full_traces(client: Client, trace_ids: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    """Yield each run and its trace, `{run, trace}`, in the order of their ids. Raises `NotFoundError` for one that is not recorded."""
    done = 0
    while done < len(trace_ids):
        some = trace_ids[done : done + AT_ONCE]
        answer = await client.post("/v2/trace/full", {"trace_ids": some}, retry=True)
        for recorded in answer["items"]:
            yield recorded
        done += len(answer["items"])
