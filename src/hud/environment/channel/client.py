"""The agent's side of the control channel: `Connection` over a stream."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter

from hud.environment.channel.framing import (
    MAX_FRAME_BYTES,
    ChannelError,
    FrameError,
    read_frame,
    request_frame,
)
from hud.environment.connection import StartFrame, ToolOutcome
from hud.errors import EnvironmentFault, InfrastructureFault
from hud.trace import Message, ToolResult, ToolSpec, Trace

_MESSAGES = TypeAdapter(list[Message])
_SPECS = TypeAdapter(list[ToolSpec])
_RETRY_SECONDS = 0.25
TOOL_MARGIN_SECONDS = 10.0
"""How much longer than a tool's own limit an answer is waited for."""


class RemoteConnection:
    """One run's environment in another process.

    `why_lost` is asked when the stream ends in the middle of the run; it returns the reason (an exit status,
    a limit that was passed), where whoever started the other process knows one.
    """

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        *,
        address: str,
        why_lost: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.address = address
        self.name, self.version = "", ""
        self.reward_range = (0.0, 1.0)
        self.tools: list[ToolSpec] | None = None
        self.why_lost = why_lost
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._lost: str | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def dial(cls, host: str, port: int, *, ready_timeout: float = 30.0) -> RemoteConnection:
        """Connect and say hello, trying again until `ready_timeout` (seconds) has passed."""
        deadline = asyncio.get_running_loop().time() + ready_timeout
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
                connection = cls(reader, writer, address=f"tcp://{host}:{port}")
                try:
                    await connection.hello()
                except BaseException:
                    await connection.close()
                    raise
                return connection
            except (OSError, EnvironmentFault) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise InfrastructureFault(
                        f"No environment answers at tcp://{host}:{port} ({error}). Is `hud serve` running there?"
                    ) from error
                await asyncio.sleep(_RETRY_SECONDS)

    async def hello(self, session_id: str | None = None) -> dict[str, Any]:
        """Introduce ourselves, or resume a parked session; returns what the environment says of itself."""
        said = await self.call("hello", {"session_id": session_id} if session_id else {})
        self.name, self.version = said["env"]["name"], said["env"]["version"]
        if said.get("reward_range"):
            low, high = said["reward_range"]
            self.reward_range = (low, high)
        manifest: dict[str, Any] = said
        return manifest

    async def list_tools(self) -> list[ToolSpec]:
        if self.tools is None:
            try:
                self.tools = _SPECS.validate_python((await self.call("tools.list", {}))["tools"])
            except EnvironmentFault as error:
                if "method not found" not in str(error):
                    raise
                self.tools = []  # A server that offers its tools as capabilities only.
        return self.tools

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, timeout: float | None = None
    ) -> ToolOutcome:
        params = {"name": name, "arguments": arguments, "timeout": timeout}
        limit = None if timeout is None else timeout + TOOL_MARGIN_SECONDS
        try:
            async with asyncio.timeout(limit):
                said = await self.call("tools.call", params)
        except TimeoutError:
            result = ToolResult.of_text(f"{name}: no answer within {timeout:g} s.", is_error=True)
            return ToolOutcome(result)
        return ToolOutcome(ToolResult.model_validate(said["result"]), said.get("state"))

    async def list_tasks(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = (await self.call("tasks.list", {}))["tasks"]
        return tasks

    async def start(self, task_id: str, args: dict[str, Any]) -> StartFrame:
        prompt = (await self.call("tasks.start", {"id": task_id, "args": args}))["prompt"]
        return StartFrame(prompt if isinstance(prompt, str) else _MESSAGES.validate_python(prompt))

    async def grade(self, answer: str, trace: Trace | None) -> dict[str, Any]:
        params: dict[str, Any] = {"answer": answer}
        if trace is not None:
            # The tokens are the trainer's business; a grader reads what was said and done.
            samples = {"steps": {"__all__": {"sample"}}}
            params["trace"] = trace.model_dump(mode="json", exclude_none=True, exclude=samples)
        frame: dict[str, Any] = await self.call("tasks.grade", params)
        return frame

    async def cancel(self) -> None:
        await self.call("tasks.cancel", {})

    async def close(self) -> None:
        if self._lost is None and not self.writer.is_closing():
            with contextlib.suppress(ConnectionError):
                self.writer.write(request_frame(0, "bye", {}))
        self._listening.cancel()
        self.writer.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result; raises the fault that the answer tells of."""
        if self._lost is not None:
            raise EnvironmentFault(self._lost)
        self._last += 1
        identifier = self._last
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[identifier] = future
        try:
            with contextlib.suppress(ConnectionError):
                self.writer.write(request_frame(identifier, method, params))
                await self.writer.drain()
            return await future
        finally:
            self._pending.pop(identifier, None)

    async def _listen(self) -> None:
        reason = "the connection was closed"
        try:
            while (frame := await read_frame(self.reader)) is not None:
                self._settle(frame)
        except (OSError, FrameError) as error:
            reason = str(error)
        if self.why_lost is not None:
            reason = await self.why_lost()
        self._lost = f"The environment at {self.address} was lost: {reason}."
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EnvironmentFault(self._lost))

    def _settle(self, frame: dict[str, Any]) -> None:
        future = self._pending.get(frame.get("id") or 0)
        if future is None or future.done():
            return
        error = frame.get("error")
        if error is None:
            future.set_result(frame.get("result"))
            return
        kind = (error.get("data") or {}).get("kind")
        told = ChannelError(error.get("code", 0), str(error.get("message")), kind)
        future.set_exception(told.as_fault())
