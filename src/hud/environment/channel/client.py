"""The agent's side of the control channel: `Connection` over a stream.

It knows frames, faults and patience; it does not know who started the process at the other end. Whoever did
passes `why_lost`, which tells what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from hud.capabilities import Capability
from hud.environment.channel.framing import (
    CLIENT,
    MAX_FRAME_BYTES,
    METHOD_NOT_FOUND,
    ChannelError,
    FrameError,
    read_frame,
    request_frame,
)
from hud.environment.channel.grading import grade_params
from hud.environment.channel.tunnels import Tunnels
from hud.environment.connection import StartFrame, ToolOutcome
from hud.errors import EnvironmentFault, InfrastructureFault, RolloutError
from hud.trace import Message, ToolResult, ToolSpec, Trace

_MESSAGES = TypeAdapter(list[Message])
_SPECS = TypeAdapter(list[ToolSpec])
_RETRY_SECONDS = 0.25
_PUBLIC = ("https", "wss")
"""Schemes whose certificates are for the name in the address: reached by it, past any tunnel."""
TOOL_MARGIN_SECONDS = 10.0
"""How much longer than a tool's own limit an answer is waited for."""
SHUTDOWN_SECONDS = 20.0
"""How long shutdown hooks may take."""
HUNG_SECONDS = 2.0
"""How long a goodbye is waited for where the environment already owes an answer."""


@dataclass(frozen=True)
class Loss:
    """Why a stream ended in the middle of a run, and whose fault that is."""

    reason: str
    fault: type[RolloutError] = EnvironmentFault


class RemoteConnection:
    """One run's environment in another process.

    `why_lost` is asked when the stream ends in the middle of the run. `max_frame` is the limit for what is
    sent; the reader has its own.
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
        self.reader, self.writer = reader, writer
        self.address = address
        self.endpoint: tuple[str, int] | None = None
        """Host and port that were dialled; None over a stream of our own, where nobody else can connect."""
        self.name, self.version, self.session_id = "", "", ""
        self.foreign = False
        """True where the other side is no server of ours: it grades answers alone, and has no tools of its own."""
        self.reward_range = (0.0, 1.0)
        self.tools: list[ToolSpec] | None = None
        self.capabilities: list[Capability] = []
        self.why_lost = why_lost
        self.max_frame = max_frame
        self.hung = False
        """True when the goodbye was not answered: the other side must be ended by whoever started it."""
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._unanswered: set[int] = set()
        self._last = 0
        self._lost: Loss | None = None
        self._tunnels: Tunnels | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def dial(cls, host: str, port: int, *, ready_timeout: float = 30.0) -> RemoteConnection:
        """Connect and say hello, trying again until `ready_timeout` (seconds) has passed."""
        problem: Exception | None = None
        try:
            async with asyncio.timeout(ready_timeout):
                while True:
                    try:
                        return await cls._greet(host, port)
                    except (OSError, InfrastructureFault) as error:
                        problem = error
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            told = problem or f"no answer within {ready_timeout:g} s"
            raise InfrastructureFault(
                f"No environment answers at tcp://{host}:{port} ({told}). Is `hud serve` running there?"
            ) from problem

    @classmethod
    async def _greet(cls, host: str, port: int) -> RemoteConnection:
        reader, writer = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
        connection = cls(reader, writer, address=f"tcp://{host}:{port}")
        connection.endpoint = (host, port)
        try:
            await connection.hello()
        except EnvironmentFault as error:
            answered = connection._lost is None
            await connection._hang_up()
            if answered:
                raise  # With an error: asking again would not help.
            raise InfrastructureFault(str(error)) from error
        except BaseException:
            await connection._hang_up()
            raise
        return connection

    async def hello(self, session_id: str | None = None) -> dict[str, Any]:
        """Introduce ourselves, or resume a parked session; returns what the environment says of itself."""
        params = {"client": CLIENT} | ({"session_id": session_id} if session_id else {})
        said = await self.call("hello", params)
        try:
            self.name, self.version = said["env"]["name"], said["env"]["version"]
            self.session_id = str(said["session_id"])
            self.foreign = "reward_range" not in said
            low, high = said.get("reward_range") or self.reward_range
            bindings = list(said.get("bindings") or [])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._nonsense("hello") from None
        self.reward_range = (float(low), float(high))
        self.capabilities = [Capability.from_manifest(binding) for binding in bindings]
        manifest: dict[str, Any] = said
        return manifest

    async def list_tools(self) -> list[ToolSpec]:
        if self.tools is None:
            try:
                said = await self.call("tools.list", {})
                self.tools = _SPECS.validate_python(_field(said, "tools"))
            except EnvironmentFault as error:
                if not _is_unknown_method(error):
                    raise
                self.tools = []  # A server that offers its tools as capabilities only.
            except ValidationError:
                raise self._nonsense("tools.list") from None
        return self.tools

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, timeout: float | None = None
    ) -> ToolOutcome:
        params = {"name": name, "arguments": arguments, "timeout": timeout}
        clock = asyncio.timeout(None if timeout is None else timeout + TOOL_MARGIN_SECONDS)
        try:
            async with clock:
                said = await self.call("tools.call", params)
            result = ToolResult.model_validate(_field(said, "result"))
        except TimeoutError:
            if not clock.expired():
                raise
            return ToolOutcome(
                ToolResult.of_text(f"{name}: no answer within {timeout:g} s.", is_error=True)
            )
        except ValidationError:
            raise self._nonsense("tools.call") from None
        return ToolOutcome(result, said.get("state"), said.get("observed") or {})

    async def reach(self, capability: Capability) -> Capability:
        if self.endpoint is None or urlsplit(capability.url).scheme in _PUBLIC:
            return capability
        if self._tunnels is None:
            self._tunnels = Tunnels(self.endpoint, self.session_id)
        return await self._tunnels.reach(capability)

    async def observe(self) -> dict[str, Any]:
        try:
            said = await self.call("run.observe", {})
        except EnvironmentFault as error:
            if not _is_unknown_method(error):
                raise
            return {}  # A server of another kind.
        return said if isinstance(said, dict) else {}

    async def list_tasks(self) -> list[dict[str, Any]]:
        tasks = _field(await self.call("tasks.list", {}), "tasks")
        if not isinstance(tasks, list):
            raise self._nonsense("tasks.list")
        return tasks

    async def start(self, task_id: str, args: dict[str, Any]) -> StartFrame:
        prompt = _field(await self.call("tasks.start", {"id": task_id, "args": args}), "prompt")
        try:
            return StartFrame(
                prompt if isinstance(prompt, str) else _MESSAGES.validate_python(prompt)
            )
        except ValidationError:
            raise self._nonsense("tasks.start") from None

    async def grade(self, answer: str, trace: Trace | None) -> dict[str, Any]:
        shown = None if self.foreign else trace
        frame = await self.call("tasks.grade", grade_params(answer, shown, self.max_frame))
        if not isinstance(frame, dict):
            raise self._nonsense("tasks.grade")
        return frame

    async def cancel(self) -> None:
        await self.call("tasks.cancel", {})

    async def close(self) -> None:
        """End the run. Raises `EnvironmentFault` where the environment says that its shutdown failed."""
        patience = HUNG_SECONDS if self._unanswered else SHUTDOWN_SECONDS
        try:
            if self._tunnels is not None:
                await self._tunnels.close()
            if self._lost is None and not self.writer.is_closing():
                async with asyncio.timeout(patience):
                    await self.call("bye", {})
        except TimeoutError:
            self.hung = True
        except RolloutError as error:
            if self._lost is None and not _is_unknown_method(error):
                raise
        finally:
            await self._hang_up()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result; raises the fault that the answer tells of."""
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
        self._unanswered.add(identifier)
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
            loss = Loss(str(error))
        finally:
            # Also where this task is cancelled: nobody may wait for an answer that is not listened for.
            self._lost = loss
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(self._fault(loss))

    def _settle(self, frame: dict[str, Any]) -> None:
        identifier = frame.get("id")
        if not isinstance(identifier, int):
            return  # An error about a frame that could not be read; the stream ends next.
        self._unanswered.discard(identifier)
        future = self._pending.get(identifier)
        if future is None or future.done():
            return
        if frame.get("error") is None:
            future.set_result(frame.get("result"))
            return
        told = ChannelError.told(frame["error"])
        fault = told.as_fault()
        fault.__cause__ = told
        future.set_exception(fault)

    async def _hang_up(self) -> None:
        self._listening.cancel()
        self.writer.close()
        await asyncio.wait([self._listening])
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def _fault(self, loss: Loss) -> RolloutError:
        return loss.fault(f"The environment at {self.address} was lost: {loss.reason}.")

    def _nonsense(self, method: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.address} answered {method} with something that is not of the control channel."
        )


def _field(said: Any, name: str) -> Any:
    return said.get(name) if isinstance(said, dict) else None


def _is_unknown_method(error: RolloutError) -> bool:
    return isinstance(error.__cause__, ChannelError) and error.__cause__.code == METHOD_NOT_FOUND
