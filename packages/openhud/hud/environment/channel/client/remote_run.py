"""A run of a remote environment, as requests and responses, over any transport.

Implements each method of the control channel; independent of streams.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from hud.capabilities import Capability
from hud.capabilities.capability import FILE_TRACKING
from hud.environment.channel.client.grade_request import grade_params
from hud.environment.channel.client.tunnels import Tunnels
from hud.environment.channel.framing import MAX_FRAME_BYTES, METHOD_NOT_FOUND, ChannelError
from hud.environment.connection import Connection, ToolOutcome
from hud.environment.run_snapshot import EnvironmentSnapshot, parts_of_text, parts_to_text
from hud.environment.templates.agent_tool import Delegation
from hud.environment.templates.prompts import StartFrame
from hud.errors import EnvironmentFault, RolloutError
from hud.trace import Message, ToolResult, ToolSpec, Trace

if TYPE_CHECKING:
    from hud.environment.channel.client.remote_files import RemoteFiles

_PROMPT: TypeAdapter[str | list[Message]] = TypeAdapter(str | list[Message])
_BINDINGS = TypeAdapter(dict[str, dict[str, Any]])
_SPECS = TypeAdapter(list[ToolSpec])
TOOL_MARGIN_SECONDS = 10.0
"""Margin on a tool's own time-out for its response, in seconds."""
_logger = logging.getLogger("hud.environment")


class RemoteRun(ABC):
    """A run's environment in another process."""

    def __init__(self, address: str, max_frame: int = MAX_FRAME_BYTES) -> None:
        self.address = address
        self.max_frame = max_frame
        self.endpoint: tuple[str, int] | None = None
        """Host and port of the server; None over a private stream, to which no second connection is possible."""
        self.name, self.version, self.session_id = "", "", ""
        self.foreign = False
        """True for a third-party server: it grades answers without a trace, and has no `tools.call`."""
        self.reward_range = (0.0, 1.0)
        self.tools: list[ToolSpec] | None = None
        self.capabilities: list[Capability] = []
        self._tunnels: Tunnels | None = None
        self._files: RemoteFiles | None = None
        """File tracking of a third-party environment."""

    @abstractmethod
    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result; raises the fault of an error response."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """True once no request can be sent any more."""

    @abstractmethod
    async def close(self) -> None:
        """End the run."""

    def learn(self, manifest: Any, method: str) -> None:
        """Store the environment's description and this run's session."""
        try:
            self.name, self.version = manifest["env"]["name"], manifest["env"]["version"]
            self.session_id = str(manifest["session_id"])
            self.foreign = "reward_range" not in manifest
            low, high = manifest.get("reward_range") or self.reward_range
            bindings = list(manifest.get("bindings") or [])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._nonsense(method) from None
        self.reward_range = (float(low), float(high))
        self.capabilities = [Capability.from_manifest(binding) for binding in bindings]

    async def list_tools(self) -> list[ToolSpec]:
        if self.tools is None:
            try:
                response = await self.call("tools.list", {})
                self.tools = _SPECS.validate_python(_field(response, "tools"))
            except EnvironmentFault as error:
                if not is_unknown_method(error):
                    raise
                self.tools = []  # A server whose tools are capabilities only.
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
                response = await self.call("tools.call", params)
            result = ToolResult.model_validate(_field(response, "result"))
        except TimeoutError:
            if not clock.expired():
                raise
            return ToolOutcome(ToolResult.of_time_out(name, timeout or 0.0))
        except ValidationError:
            raise self._nonsense("tools.call") from None
        return ToolOutcome(result, response.get("observed") or {})

    async def delegate(self, name: str, arguments: dict[str, Any] | str) -> Delegation | ToolResult:
        response = await self.call("subagents.delegate", {"name": name, "arguments": arguments})
        try:
            if _field(response, "refused") is not None:
                return ToolResult.model_validate(response["refused"])
            return Delegation.model_validate(_field(response, "delegation"))
        except ValidationError:
            raise self._nonsense("subagents.delegate") from None

    async def nested(self, name: str) -> Connection:
        run = NestedRun(self)
        run.learn(await self.call("subagents.open", {"name": name}), "subagents.open")
        return run

    async def close_tunnels(self) -> None:
        """Close the tunnels to the run's capabilities."""
        files, self._files = self._files, None
        if files is not None:
            await files.close()
        if self._tunnels is not None:
            await self._tunnels.close()

    async def reach(self, capability: Capability) -> Capability:
        if self.endpoint is None:
            return capability
        if self._tunnels is None:
            self._tunnels = Tunnels(self.endpoint, self.session_id)
        return await self._tunnels.reach(capability)

    async def snapshot(self) -> EnvironmentSnapshot:
        try:
            response = await self.call("run.snapshot", {})
            parts = parts_of_text(_field(response, "parts"))
            return EnvironmentSnapshot(parts, _field(response, "refused"))
        except EnvironmentFault as error:
            if not is_unknown_method(error):
                raise
            return EnvironmentSnapshot()
        except (AttributeError, TypeError, ValueError):
            raise self._nonsense("run.snapshot") from None

    async def restore(self, parts: Mapping[str, bytes]) -> str | None:
        response = await self.call("run.restore", {"parts": parts_to_text(parts)})
        problem: str | None = _field(response, "problem")
        return problem

    async def observe(self) -> dict[str, Any]:
        if not self.foreign:
            response = await self.call("run.observe", {})
            return response if isinstance(response, dict) else {}
        if self._files is None:
            return {}
        try:
            changed = await self._files.changed()
        except RolloutError as error:
            await self._give_files_up(error)
            return {}
        return {"files": changed} if changed else {}

    async def _follow_files(self) -> None:
        """Record the file changes of each step, if the environment supports it."""
        from hud.environment.channel.client.remote_files import RemoteFiles  # Imports this module.

        for capability in self.capabilities:
            if capability.protocol == FILE_TRACKING and self._files is None:
                try:
                    self._files = await RemoteFiles.begin(await self.reach(capability))
                except RolloutError as error:
                    await self._give_files_up(error)

    async def _give_files_up(self, error: RolloutError) -> None:
        """Stop tracking files after an error; the run and its reward do not depend on it."""
        files, self._files = self._files, None
        if files is not None:
            await files.close()
        _logger.warning(
            "Environment %r: changes of its files are no longer recorded: %s", self.name, error
        )

    async def list_tasks(self) -> list[dict[str, Any]]:
        tasks = _field(await self.call("tasks.list", {}), "tasks")
        if not isinstance(tasks, list):
            raise self._nonsense("tasks.list")
        return tasks

    async def start(
        self, task_id: str, args: dict[str, Any], *, training_progress: float | None = None
    ) -> StartFrame:
        params: dict[str, Any] = {"id": task_id, "args": args}
        if training_progress is not None and not self.foreign:
            params["training_progress"] = training_progress
        response = await self.call("tasks.start", params)
        if self.foreign:
            await self._follow_files()
        try:
            return StartFrame(
                _PROMPT.validate_python(_field(response, "prompt")),
                _BINDINGS.validate_python(response.get("bindings") or {}),
                response.get("state"),
            )
        except ValidationError:
            raise self._nonsense("tasks.start") from None

    async def grade(self, answer: str, trace: Trace | None) -> dict[str, Any]:
        params = grade_params(answer, None if self.foreign else trace, self.max_frame)
        frame = await self.call("tasks.grade", params)
        if not isinstance(frame, dict):
            raise self._nonsense("tasks.grade")
        return frame

    async def cancel(self) -> None:
        await self.call("tasks.cancel", {})

    def _nonsense(self, method: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.address} answered {method} with something that is not of the control channel."
        )


class NestedRun(RemoteRun):
    """A subagent's run, nested in its caller's: it shares the caller's connection, with another session."""

    def __init__(self, caller: RemoteRun) -> None:
        super().__init__(caller.address, caller.max_frame)
        self.endpoint = caller.endpoint
        self.caller = caller

    @property
    def is_lost(self) -> bool:
        return self.caller.is_lost

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        return await self.caller.call(method, {"session_id": self.session_id} | params)

    async def close(self) -> None:
        """End the run and its running tool calls. Raises `EnvironmentFault` if its shutdown failed."""
        await self.close_tunnels()
        if not self.is_lost:
            await self.call("subagents.close", {})


def _field(response: Any, name: str) -> Any:
    return response.get(name) if isinstance(response, dict) else None


def is_unknown_method(error: RolloutError) -> bool:
    """Return whether the server does not implement the method."""
    return isinstance(error.__cause__, ChannelError) and error.__cause__.code == METHOD_NOT_FOUND
