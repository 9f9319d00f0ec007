"""`Delivery`: what the attempts of a worker recorded, brought to the platform; that of several attempts in one request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.client import Client
from hud.errors import HudError
from hud.fleet.attempts.held_attempts import Attempt

PACE_SECONDS = 0.2
"""Between two requests that bring ends of attempts: those of a busy worker are brought together."""
MOST_PARTS = 256
"""Attempts in one request."""
MOST_BYTES = 16 << 20
"""Size in bytes of one request, unless a single attempt takes more."""

_OF_ALL = (401, 403, 503)
"""Statuses of failures that are no single attempt's."""


@dataclass(frozen=True)
class _Part:
    """Lines of one attempt."""

    attempt: Attempt
    lines: bytes
    over: bool

    def head(self) -> dict[str, Any]:
        """Return its entry in the first line of a request; see `hud_platform.routes.fleet`."""
        attempt = self.attempt
        return {
            "trace_id": attempt.trace_id,
            "attempt": attempt.lease["attempt"],
            "size": len(self.lines),
            "over": self.over,
            "again": attempt.again,
            "first": attempt.first,
        }


class Delivery:
    """Brings events of one worker's attempts: in the order in which they were recorded, one request at a time."""

    def __init__(self, client: Client, worker: str, brought: Callable[[Attempt], None]) -> None:
        """`brought` is called for each attempt that is over, when the platform has its end or refused it."""
        self.client = client
        self.worker = worker
        self.brought = brought
        self._over: list[Attempt] = []
        self._streamed: list[Attempt] = []
        self._any = asyncio.Event()
        self._sending = asyncio.Lock()

    def end(self, attempt: Attempt) -> None:
        """Have the end of an attempt brought soon."""
        self._over.append(attempt)
        self._any.set()

    def stream(self, attempts: Sequence[Attempt]) -> None:
        """Have the steps brought soon that these attempts recorded since they were brought last."""
        self._streamed = list(attempts)
        self._any.set()

    async def work(self) -> None:
        """Bring what there is, until this is cancelled: at once, or with what comes within `PACE_SECONDS`."""
        while True:
            await self._any.wait()
            await self.bring()
            await asyncio.sleep(PACE_SECONDS)

    async def bring(self) -> None:
        """Bring every end that waits, and the steps that are to be streamed."""
        async with self._sending:
            self._any.clear()
            over, self._over = self._over, []
            streamed, self._streamed = self._streamed, []
            ends = [
                _Part(attempt, attempt.recorder.take_steps() + attempt.recorder.take(), over=True)
                for attempt in over
            ]
            steps = [
                _Part(attempt, attempt.recorder.take_steps(), over=False)
                for attempt in streamed
                if not attempt.over
            ]
            for some in _requests([*ends, *(part for part in steps if part.lines)]):
                await self._send(some)

    async def _send(self, parts: list[_Part]) -> None:
        head = {"worker": self.worker, "parts": [part.head() for part in parts]}
        body = b"".join([exact_json.dumps(head), b"\n", *(part.lines for part in parts)])
        try:
            # Repeating it is harmless: only an attempt that holds the rollout is heard, and only once.
            answer = await self.client.post("/v2/fleet/events", body, retry=True)
        except HudError as error:
            if len(parts) > 1 and error.status not in _OF_ALL:
                for part in parts:  # What the platform fails at in one costs no other.
                    await self._send([part])
                return
            for part in parts:
                self._lose(part, str(error))
            return
        for part, result in zip(parts, answer["results"], strict=True):
            self._settle(part, result)

    def _settle(self, part: _Part, result: dict[str, Any]) -> None:
        attempt = part.attempt
        if "detail" in result:
            _report(attempt, result["detail"])
        if part.over:
            self.brought(attempt)
        elif result["taken"]:
            attempt.first = False
        elif "detail" not in result and attempt.task is not None:
            attempt.task.cancel()  # Its lease is lost.

    def _lose(self, part: _Part, why: str) -> None:
        """Keep steps for the next request. An end is given up: its lease runs out, and the rollout is played again."""
        if part.over:
            _report(part.attempt, why)
            self.brought(part.attempt)
        else:
            part.attempt.recorder.put_back(part.lines)


def _requests(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Yield parts in the lists of one request each."""
    some: list[_Part] = []
    size = 0
    for part in parts:
        if some and (len(some) == MOST_PARTS or size + len(part.lines) > MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(part)
        size += len(part.lines)
    if some:
        yield some


def _report(attempt: Attempt, why: str) -> None:
    print(f"{attempt.trace_id}: {why}", file=sys.stderr, flush=True)
