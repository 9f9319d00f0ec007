"""The agent's side of the control channel: `Connection` over a stream.

Handles frames, faults and time-outs. The code that started the environment's process passes `why_lost`, which returns how
the process ended. An end of a process that serves this run alone is the agent's failure once its agent has called a tool.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from hud.environment.channel.client.remote_run import RemoteRun, is_unknown_method
from hud.environment.channel.framing import (
    CLIENT,
    MAX_FRAME_BYTES,
    ChannelError,
    FrameError,
    read_frame,
    request_frame,
    watch,
)
from hud.errors import AgentFault, EnvironmentFault, InfrastructureFault, RolloutError
from hud.processes.backoff import Backoff

_PAUSES = Backoff(0.05, longest_seconds=0.5)
SHUTDOWN_SECONDS = 20.0
"""Time-out of the shutdown hooks, in seconds."""
HUNG_SECONDS = 2.0
"""Time-out of a goodbye while the response to a call of the agent, or to its grading, is overdue, in seconds."""


@dataclass(frozen=True)
class Loss:
    """Cause of a stream's end during a run, with its failure kind."""

    reason: str
    fault: type[RolloutError] = EnvironmentFault
    alone: bool = False
    """True if the lost process served this run alone, so that no other run can have ended it."""
    passed_limit: bool = False
    """True if it passed a limit of the run, which holds in the agent's turns, too."""


_CALL = "tools.call"
_GRADE = "tasks.grade"
_OWN = frozenset({"tasks.start", _GRADE})
"""Requests during which code of the environment alone executes."""
_AGENTS = frozenset({_CALL, _GRADE})
"""Requests during which code executes that an agent can steer."""


class RemoteConnection(RemoteRun):
    """A run's environment in another process.

    `why_lost` is called when the stream ends during the run. `max_frame` limits sent frames; the reader has its own limit.
    """

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        *,
        address: str,
        why_lost: Callable[[], Awaitable[Loss]] | None = None,
        max_frame: int = MAX_FRAME_BYTES,
    ) -> None:
        super().__init__(address, max_frame)
        self.reader, self.writer = reader, writer
        self.why_lost = why_lost
        self.hung = False
        """True if the goodbye was not answered: the caller must kill the process that it started."""
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self.acted = False
        """True once its agent has called a tool: a process that the tool left may still run."""
        self._unanswered: dict[int, str] = {}
        """Methods of requests without a response, by the request's id."""
        self._last = 0
        self._lost: Loss | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def dial(
        cls, host: str, port: int, *, ready_timeout: float = 30.0, client: str | None = CLIENT
    ) -> RemoteConnection:
        """Connect and send `hello`, with retries for `ready_timeout` seconds; then raises `InfrastructureFault`.

        With `client` None, tools and files are announced as capabilities, too.
        """
        problem: Exception | None = None
        try:
            async with asyncio.timeout(ready_timeout):
                for attempt in count(1):
                    try:
                        return await cls._greet(host, port, client)
                    except (OSError, InfrastructureFault) as error:
                        problem = error
                    await asyncio.sleep(_PAUSES.seconds(attempt))
        except TimeoutError:
            reason = problem or f"no answer within {ready_timeout:g} s"
            raise InfrastructureFault(
                f"No environment answers at tcp://{host}:{port} ({reason}). Is `hud serve` running there?"
            ) from problem
        raise AssertionError("unreachable")

    @classmethod
    async def _greet(cls, host: str, port: int, client: str | None) -> RemoteConnection:
        reader, writer = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
        watch(writer)
        connection = cls(reader, writer, address=f"tcp://{host}:{port}")
        connection.endpoint = (host, port)
        try:
            await connection.hello(client=client)
        except EnvironmentFault as error:
            answered = connection._lost is None
            await connection._hang_up()
            if answered:
                raise  # An error response is permanent.
            raise InfrastructureFault(str(error)) from error
        except BaseException:
            await connection._hang_up()
            raise
        return connection

    async def hello(
        self, session_id: str | None = None, *, client: str | None = CLIENT
    ) -> dict[str, Any]:
        """Send `hello`, or resume a parked session; returns the environment's description."""
        params = {"client": client, "session_id": session_id}
        answer = await self.call("hello", {name: value for name, value in params.items() if value})
        self.learn(answer, "hello")
        manifest: dict[str, Any] = answer
        return manifest

    @property
    def at_work(self) -> bool:
        """True while the environment executes what its agent asked for, or grades what it left."""
        return not _AGENTS.isdisjoint(self._unanswered.values())

    async def close(self) -> None:
        """End the run. Raises `EnvironmentFault` if the environment reports a failed shutdown."""
        patience = HUNG_SECONDS if self.at_work else SHUTDOWN_SECONDS
        try:
            await self.close_tunnels()
            if self._lost is not None or self.writer.is_closing():
                return
            async with asyncio.timeout(patience):
                await self.call("bye", {})
        except TimeoutError:
            self.hung = True
        except RolloutError as error:
            if self._lost is None and not is_unknown_method(error):
                raise
        finally:
            await self._hang_up()

    async def leave(self) -> None:
        """Disconnect without a goodbye: a started task remains parked on the server."""
        await self.close_tunnels()
        await self._hang_up()

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request; return its result. Raises an error response's fault, `EnvironmentFault` for too long a frame."""
        if self._lost is not None:
            raise self._fault(self._lost)
        self._last += 1
        identifier = self._last
        frame = request_frame(identifier, method, params)
        if len(frame) > self.max_frame:
            raise EnvironmentFault(
                f"{method} would send {len(frame):,} bytes to the environment at {self.address}; a frame of the "
                f"control channel has at most {self.max_frame:,}."
            )
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[identifier] = future
        self._unanswered[identifier] = method
        self.acted = self.acted or method == _CALL
        try:
            with contextlib.suppress(ConnectionError):
                self.writer.write(frame)
                await self.writer.drain()
            return await future
        finally:
            self._pending.pop(identifier, None)

    async def _listen(self) -> None:
        loss = Loss("the connection was closed")
        try:
            while (frame := await read_frame(self.reader)) is not None:
                self._settle(frame)
            if self.why_lost is not None:
                loss = await self.why_lost()
        except OSError as error:
            loss = Loss(str(error)) if self.why_lost is None else await self.why_lost()
        except FrameError as error:
            # Not a reason for a repetition: what wrote it runs in this run's process.
            loss = Loss(str(error), alone=self.why_lost is not None)
        finally:
            # Also on cancellation: no later response may find the future.
            self._lost = loss = self._attributed(loss)
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(self._fault(loss))

    def _attributed(self, loss: Loss) -> Loss:
        """Return the loss, as the agent's failure where a call of this run, or what it left, can have ended its own process.

        What a call left running can send any signal, lower any limit, and wait for the moment in which grading begins.
        """
        if loss.fault is not EnvironmentFault or not loss.alone:
            return loss
        in_turn = _OWN.isdisjoint(self._unanswered.values())
        by_agent = self.acted or (loss.passed_limit and in_turn)
        return replace(loss, fault=AgentFault) if by_agent else loss

    def _settle(self, frame: dict[str, Any]) -> None:
        identifier = frame.get("id")
        if not isinstance(identifier, int):
            return  # An error about an unreadable frame; the server closes the stream next.
        self._unanswered.pop(identifier, None)
        future = self._pending.get(identifier)
        if future is None or future.done():
            return
        if frame.get("error") is None:
            future.set_result(frame.get("result"))
            return
        error = ChannelError.from_response(frame["error"])
        fault = error.as_fault()
        fault.__cause__ = error
        future.set_exception(fault)

    async def _hang_up(self) -> None:
        self._listening.cancel()
        self.writer.close()
        if self._pending and not self._listening.done():
            await asyncio.wait([self._listening])
        self._lost = self._lost or Loss("the connection was closed")
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def _fault(self, loss: Loss) -> RolloutError:
        return loss.fault(f"The environment at {self.address} was lost: {loss.reason}.")
