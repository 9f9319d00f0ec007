"""The Chrome DevTools Protocol over any transport: commands, responses and events.

Works on messages and sessions; independent of pages, and of the transport (WebSocket or pipe).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from hud import exact_json
from hud.errors import EnvironmentFault, InfrastructureFault, RolloutError

COMMAND_SECONDS = 30.0
Listener = Callable[[str, dict[str, Any], str | None], None]
"""Listener of events: method, params, session id."""


class Wire(Protocol):
    """A transport of whole messages."""

    async def send(self, message: bytes, /) -> None: ...

    def messages(self) -> AsyncIterator[bytes | str]: ...

    async def close(self) -> None: ...

    def why_closed(self) -> str | None:
        """Return the peer's reason for closing, if it sent one."""
        ...


class RefusedError(EnvironmentFault):
    """The browser refused a command."""


class DevTools:
    """A connection: concurrent commands over any number of sessions."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last = 0
        self._pending: dict[int, tuple[str | None, asyncio.Future[dict[str, Any]]]] = {}
        """Session and response of each command without one."""
        self._listeners: list[Listener] = []
        self._lost: RolloutError | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def lost(self) -> bool:
        """True when the transport is closed."""
        return self._lost is not None

    def listen(self, listener: Listener) -> None:
        """Call `listener` for every event; it must not block."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        session: str | None = None,
        timeout: float = COMMAND_SECONDS,
    ) -> dict[str, Any]:
        """Send a command and return its result.

        Raises `RefusedError`; `EnvironmentFault` without a response within `timeout` seconds, or if the browser exited;
        `InfrastructureFault` if the connection was lost.
        """
        message = await self.exchange(method, params or {}, session, timeout)
        problem = message.get("error")
        if problem is not None:
            detail = f"{problem.get('message')} {problem.get('data') or ''}".strip()
            raise RefusedError(f"The browser refused {method}: {detail.rstrip('.')}.")
        result: dict[str, Any] = message.get("result") or {}
        return result

    async def exchange(
        self, method: str, params: dict[str, Any], session: str | None, timeout: float
    ) -> dict[str, Any]:
        """Send a command; return its result or error. Raises `EnvironmentFault` without a response in time."""
        if self._lost is not None:
            raise self._lost
        self._last += 1
        identifier = self._last
        message = {"id": identifier, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[identifier] = session, future
        clock = asyncio.timeout(timeout)
        try:
            async with clock:
                await self._send(exact_json.dumps(message))
                return await future
        except TimeoutError:
            if not clock.expired():
                raise
            raise EnvironmentFault(
                f"The browser did not answer {method} within {timeout:g} s."
            ) from None
        finally:
            self._pending.pop(identifier, None)

    async def close(self) -> None:
        await self._wire.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _send(self, message: bytes) -> None:
        try:
            await self._wire.send(message)
        except (OSError, RuntimeError) as error:
            raise self._loss() from error

    async def _read(self) -> None:
        try:
            async for message in self._wire.messages():
                self._take(exact_json.loads(message))
        finally:
            # Also on cancellation: no later response may find the future.
            self._lost = self._loss()
            for _, future in self._pending.values():
                _fail(future, self._lost)

    def _take(self, message: dict[str, Any]) -> None:
        identifier = message.get("id")
        if identifier is None:
            if "method" not in message:
                return  # The answer to a message that was no command.
            if message["method"] == "Target.detachedFromTarget":
                self._end_session((message.get("params") or {}).get("sessionId"))
            for listener in list(self._listeners):
                listener(message["method"], message.get("params") or {}, message.get("sessionId"))
            return
        _, future = self._pending.get(identifier, (None, None))
        if future is not None and not future.done():
            future.set_result(message)

    def _end_session(self, session: str | None) -> None:
        """Fail the commands of a session that has ended: the browser does not answer them."""
        for of_session, future in list(self._pending.values()):
            if of_session is not None and of_session == session:
                _fail(future, EnvironmentFault("The tab was closed before it answered."))

    def _loss(self) -> RolloutError:
        why = self._wire.why_closed()
        if why:
            return EnvironmentFault(f"The browser is gone: {why}.")
        return InfrastructureFault("The connection to the browser was lost.")


def _fail(future: asyncio.Future[dict[str, Any]], error: RolloutError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Its caller may be cancelled at the same time.
