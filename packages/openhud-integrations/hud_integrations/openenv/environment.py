"""`OpenEnvEnvironment`: a server of OpenEnv as an environment; each run has a session of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from hud.environment import Environment, Part, Task
from hud.errors import InfrastructureFault, UsageError
from hud.graders import EvaluationResult
from hud.trace import ToolResult, ToolSpec
from hud_integrations.openenv.session import SECONDS, ServerRefusedError, Session, open_session

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun

_OWN_FIELDS = ("metadata", "done", "reward")
"""Fields of actions and observations that carry nothing for the agent."""


@dataclass(frozen=True)
class _SessionTool:
    """A tool of a session: MCP's, or the one that takes a step."""

    spec: ToolSpec
    act: Callable[[dict[str, Any]], Awaitable[ToolResult]]

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        del timeout
        if isinstance(arguments, str):
            return ToolResult.of_text("The arguments are no JSON object.", is_error=True)
        try:
            return await self.act(arguments)
        except ServerRefusedError as error:
            return ToolResult.of_text(str(error), is_error=True)


class _SessionPart(Part[Session]):
    name = "session"

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[Session]:
        del run
        async with open_session(self._url) as session:
            yield session


class OpenEnvEnvironment(Environment):
    """An OpenEnv server: template `episode`; its MCP tools, or the tool `step` with the schema of its actions."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "openenv",
        instructions: str = "",
        reward: Literal["last", "sum"] = "last",
        returns: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """`url`: `http://HOST:PORT`. `reward`: the last one of an episode, or the sum of all.

        `returns` are the rewards that are worth 0 and 1; the reward of a run is linear between them and clamped.
        Raises `UsageError` for another address, and for `returns` that do not rise.
        """
        super().__init__(name)
        self.source_file = sys._getframe(1).f_code.co_filename
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"An OpenEnv server's address is http://HOST:PORT, not {url!r}.")
        if not returns[0] < returns[1]:
            raise UsageError(f"returns must be (worst, best) with worst below best, not {returns}.")
        self._url, self._instructions = url, instructions
        self._reward, self._returns = reward, returns
        self._session = self.add(_SessionPart(url))
        self.template(id="episode")(self._episode())

    def episode(self, seed: int | None = None, **options: Any) -> Task:
        """Return the task of an episode; `options` are further arguments of the server's reset."""
        return self.templates["episode"](seed=seed, options=options)

    def _episode(self) -> Any:
        async def episode(seed: int | None = None, options: dict[str, Any] | None = None) -> AsyncGenerator[Any, Any]:  # fmt: skip
            """Play one episode."""
            session = self._session.opened
            reset_options = {**(options or {}), **({} if seed is None else {"seed": seed})}
            observation = await session.reset(**reset_options)
            session.offered = {tool.spec.name: tool for tool in await self._tools(session)}
            yield "\n\n".join(filter(None, [self._instructions, text_of(observation)]))
            yield self._graded(session)

        return episode

    def _graded(self, session: Session) -> EvaluationResult:
        rewards = session.episode.rewards
        total = sum(rewards) if self._reward == "sum" else (rewards[-1] if rewards else 0.0)
        worst, best = self._returns
        acted = session.episode.steps > 0
        return EvaluationResult(
            reward=min(1.0, max(0.0, (total - worst) / (best - worst))) if acted else 0.0,
            info={
                "rewards": rewards,
                "steps": session.episode.steps,
                "done": session.episode.done,
            },
        )

    async def _tools(self, session: Session) -> list[_SessionTool]:
        """Return the session's tools."""
        listed = await session.mcp_tools()
        if not listed:
            return [self._step_tool(session, await self._action_schema())]
        return [self._mcp_tool(session, tool) for tool in listed]

    def _mcp_tool(self, session: Session, tool: dict[str, Any]) -> _SessionTool:
        name = tool["name"]

        async def call(arguments: dict[str, Any]) -> ToolResult:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
            observation = await session.step(action)
            if observation.get("error"):
                problem = observation["error"]
                message = problem.get("message") if isinstance(problem, dict) else problem
                return ToolResult.of_text(str(message), is_error=True)
            return ToolResult.of_text(_ended(text_of(observation.get("result")), session))

        schema = tool.get("inputSchema") or tool.get("input_schema") or {"type": "object"}
        spec = ToolSpec(name=name, description=tool.get("description") or "", parameters=schema)
        return _SessionTool(spec, call)

    def _step_tool(self, session: Session, schema: dict[str, Any]) -> _SessionTool:
        async def step(arguments: dict[str, Any]) -> ToolResult:
            if session.episode.done:
                return ToolResult.of_text("The episode is over.", is_error=True)
            return ToolResult.of_text(_ended(text_of(await session.step(arguments)), session))

        spec = ToolSpec(
            name="step",
            description=schema.get("description") or "Take one action.",
            parameters=schema,
        )
        return _SessionTool(spec, step)

    async def _action_schema(self) -> dict[str, Any]:
        """Return the schema of actions, without the fields that carry nothing."""
        try:
            async with httpx.AsyncClient(timeout=SECONDS) as client:
                response = await client.get(f"{self._url.rstrip('/')}/schema")
                response.raise_for_status()
                schema: dict[str, Any] = response.json()["action"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise InfrastructureFault(
                f"The OpenEnv server at {self._url} gave no schema of its actions: {error}"
            ) from error
        properties = schema.get("properties") or {}
        own = {
            name: schema_of_field
            for name, schema_of_field in properties.items()
            if name not in _OWN_FIELDS
        }
        return {**schema, "properties": own}


def text_of(value: Any) -> str:
    """Return an observation, or a tool's result, as text: its text blocks, its one field's text, or JSON."""
    if isinstance(value, dict):
        if isinstance(value.get("content"), list):
            blocks = [block.get("text") for block in value["content"] if isinstance(block, dict)]
            return "\n".join(text for text in blocks if text)
        fields = {name: field for name, field in value.items() if name not in _OWN_FIELDS}
        texts = [field for field in fields.values() if isinstance(field, str)]
        return texts[0] if len(fields) == len(texts) == 1 else json.dumps(fields)
    return value if isinstance(value, str) else json.dumps(value)


def _ended(text: str, session: Session) -> str:
    rewards = session.episode.rewards
    lines = [text, *([f"Reward: {rewards[-1]:g}"] if rewards else [])]
    return "\n".join([*lines, *(["The episode is over."] if session.episode.done else [])])
