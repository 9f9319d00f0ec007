"""`Client`: requests to the platform; its errors are raised as `HudError`s."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import httpx

from hud import exact_json
from hud.errors import (
    ConflictError,
    DeviceMemoryError,
    HudError,
    NotFoundError,
    PlatformError,
    StoreError,
    UsageError,
)
from hud.processes.backoff import Backoff

if TYPE_CHECKING:
    from hud.client.embedded import EmbeddedPlatform

RETRIED = (502, 503, 504)
ATTEMPTS = 5
PAUSES = Backoff(2.0, spread=0.2)
DOWNLOAD_PAUSES = Backoff(1.0)
PATIENCE_SECONDS = 120.0
"""Longest total time of retries with `Retry-After`, in seconds."""
LONGEST_WAIT_SECONDS = 30.0
"""Longest accepted `Retry-After`, in seconds."""
REPORT_SECONDS = 5.0
"""A request that waits longer than this between its attempts is reported, and again whenever its wait has tripled."""
TIMEOUT_SECONDS = 600.0
_KINDS: dict[int, type[HudError]] = {
    400: UsageError,
    404: NotFoundError,
    409: ConflictError,
    422: UsageError,
}
_log = logging.getLogger("hud.client")


class Client:
    """A client of one platform.

    Methods return the response's JSON and raise `UsageError` (and its subclasses) for errors of the caller, `StoreError`
    for failures of the store, `PlatformError` otherwise. Safe to use from several event loops.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        home: Path | None = None,
        database: str | None = None,
    ) -> None:
        self.api_url = api_url
        self._database = database
        self.api_key = api_key
        self._home = home
        self._embedded: EmbeddedPlatform | None = None
        self._opening = threading.Lock()
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            WeakKeyDictionary()
        )

    @property
    def embedded(self) -> EmbeddedPlatform | None:
        """The platform in this process; None for a server."""
        if self.api_url is not None:
            return None
        if self._embedded is None:
            with self._opening:  # The recorder's thread and its caller may race here.
                if self._embedded is None:
                    # Imports a web framework and the database.
                    from hud.client.embedded import open_embedded

                    assert self._home is not None
                    self._embedded = open_embedded(self._home, self._database)
        return self._embedded

    async def get(self, path: str, *, params: dict[str, Any] | None = None) -> Any:
        """GET `path`; connection failures are retried."""
        return await self._send("GET", path, params=params, retry=True)

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        retry: bool = False,
    ) -> Any:
        """POST `body` as JSON. Retried only if the caller declares it idempotent."""
        return await self._send(
            "POST", path, body=body, params=params, headers=headers, retry=retry
        )

    async def put(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Any:
        """PUT `body` as JSON."""
        return await self._send("PUT", path, body=body, headers=headers, retry=True)

    async def delete(self, path: str) -> Any:
        """DELETE `path`."""
        return await self._send("DELETE", path, retry=True)

    async def ingest(self, lines: bytes) -> list[int]:
        """Store journal lines; return the numbers of those that cannot be stored, from 0. Blocks, if it is embedded."""
        # Hot path: a request takes longer than the rows of a short batch.
        if self.embedded is not None:
            return self.embedded.ingest(lines)
        answer = await self.post("/v2/ingest", lines)
        damaged: list[int] = answer["damaged"]
        return damaged

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """Yield the bytes at `path`; a connection that breaks is opened again where it broke.

        Raises as the other methods do, and `PlatformError` 503 after several breaks without progress.
        """
        received, breaks = 0, 0
        while True:
            headers = {"range": f"bytes={received}-"} if received else {}
            try:
                async with self._pool().stream("GET", path, headers=headers) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        _content(answer)
                    if received and answer.status_code != 206:
                        raise PlatformError(f"{self.api_url} cannot continue {path}.", 503)
                    async for piece in answer.aiter_raw():
                        received, breaks = received + len(piece), 0
                        yield piece
                return
            except httpx.TransportError as error:
                breaks += 1
                if breaks >= ATTEMPTS:
                    raise PlatformError(f"{self.api_url}{path} broke off: {error}.", 503) from error
                await asyncio.sleep(DOWNLOAD_PAUSES.seconds(breaks))

    def close(self) -> None:
        """Close the platform of this process."""
        if self._embedded is not None:
            self._embedded.close()
            self._embedded = None

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        retry: bool,
    ) -> Any:
        content = body if isinstance(body, bytes | None) else exact_json.dumps(body, default=str)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        patience = time.monotonic() + PATIENCE_SECONDS
        where = self.api_url or "The platform of this process"
        waited, report_after = 0.0, REPORT_SECONDS
        for attempt in itertools.count(1):
            wait: float | None = None
            alone = not retry or self.api_url is None
            try:
                answer = await self._pool().request(
                    method,
                    path,
                    content=content,
                    params=params,
                    headers={"content-type": kind, **(headers or {})},
                )
            except httpx.TransportError as error:
                reason = f"did not answer: {error or type(error).__name__}."
                if alone or attempt >= ATTEMPTS or isinstance(error, httpx.TimeoutException):
                    raise PlatformError(f"{where} {reason}", 503) from error
            else:
                wait = _retry_after(answer)
                last = attempt >= ATTEMPTS if wait is None else time.monotonic() > patience
                # The embedded platform answers 503 while its engine's process is started again.
                restarting = retry and answer.status_code == 503 and wait is not None
                if answer.status_code not in RETRIED or last or (alone and not restarting):
                    return _content(answer)
                reason = f"answers {answer.status_code}: {_detail(answer)}"
            pause = PAUSES.seconds(attempt) if wait is None else wait
            waited += pause
            if waited > report_after:
                _log.warning("%s %s It is asked again in %.0f s.", where, reason, pause)
                report_after = 3 * waited
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _pool(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            transport = None if self.embedded is None else self.embedded.transport
            pool = self._pools[loop] = httpx.AsyncClient(
                transport=transport,
                base_url=self.api_url or "http://embedded",
                timeout=TIMEOUT_SECONDS,
                headers={"authorization": f"Bearer {self.api_key}"} if self.api_key else None,
            )
        return pool


def _retry_after(answer: httpx.Response) -> float | None:
    """Return the value of `Retry-After` in seconds, or None."""
    header = answer.headers.get("retry-after", "")
    return min(max(float(header), 0.5), LONGEST_WAIT_SECONDS) if header.isdecimal() else None


def _content(answer: httpx.Response) -> Any:
    """Return the response's JSON, or raise its error."""
    if answer.is_success:
        return exact_json.loads(answer.content) if answer.content else {}
    message = _detail(answer)
    for kind in (StoreError, DeviceMemoryError):
        if answer.headers.get("x-hud-error") == kind.__name__:
            raise kind(message)
    raise refusal(answer.status_code, message)


def _detail(answer: httpx.Response) -> str:
    """Return the reason of a response that is no success."""
    try:
        detail = exact_json.loads(answer.content)["detail"]
    except (exact_json.JSONDecodeError, KeyError, TypeError):
        detail = answer.text[:500] or f"status {answer.status_code}"
    return detail if isinstance(detail, str) else exact_json.dumps(detail).decode()


def refusal(status: int, message: str) -> HudError:
    """Return the error of a request, or of one of several in a request, that the platform refused."""
    kind = _KINDS.get(status)
    return kind(message) if kind is not None else PlatformError(message, status)
