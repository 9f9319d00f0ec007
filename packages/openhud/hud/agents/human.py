"""`HumanAgent`: a person plays at a terminal, to test an environment, or for human baselines.

The person's actions are recorded like a model's turns (`Moves`, for any user interface). Handles input and output of one run;
independent of the display of jobs.
"""

from __future__ import annotations

import asyncio
import base64
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.agents.agent import Agent, RunView
from hud.agents.native.attach import attach
from hud.errors import UsageError
from hud.trace import (
    AgentStep,
    ImageContent,
    StopReason,
    ToolCall,
    ToolResult,
    ToolSpec,
    new_id,
    now,
)

HUMAN = "human"
"""Model name of human players."""
HUMAN_SECONDS = "human_seconds"
"""Key of a trace's `extra`: seconds from the task's display to its end."""


class Moves:
    """A run played by a person. `started` is the beginning of the time to think about a move."""

    def __init__(
        self, run: RunView, *, name: str = HUMAN, tool_timeout_seconds: float | None = None
    ) -> None:
        self.run = run
        self.name = name
        self.tool_timeout_seconds = tool_timeout_seconds

    async def call(self, tool: str, arguments: dict[str, Any], started: datetime) -> ToolResult:
        """Call a tool; its own failure is an error result."""
        call = ToolCall(id=f"call_{new_id()[:8]}", name=tool, arguments=arguments)
        self.run.record(
            AgentStep(
                tool_calls=[call],
                finish_reason="tool_calls",
                model=self.name,
                started_at=started,
            )
        )
        return await self.run.call_tool(call, timeout=self.tool_timeout_seconds)

    def answer(self, text: str, started: datetime) -> None:
        """Set the answer to be graded."""
        self.run.trace.content = text
        self.run.record(
            AgentStep(
                content=text,
                done=True,
                finish_reason="stop",
                model=self.name,
                started_at=started,
            )
        )


HELP = """\
  TOOL key=value ...    call a tool; values are JSON where they parse, text where not
  TOOL {"key": ...}     the same, as JSON
  tools                 what there is to call
  prompt                the task again
  answer TEXT           the answer; the run ends
  answer                the same, over several lines, up to one that is a dot
  quit                  no answer; the run ends"""

Ask = Callable[[str], str]
"""Function that shows a prompt and returns a line; raises `EOFError` at the end of input."""


class HumanAgent(Agent):
    """Agent that is played by a person, one run at a time."""

    def __init__(
        self,
        *,
        ask: Ask = input,
        say: Callable[[str], None] = print,
        timeout_seconds: float | None = None,
        tool_timeout_seconds: float | None = None,
        name: str = HUMAN,
    ) -> None:
        self.ask, self.say = ask, say
        self.timeout_seconds = timeout_seconds
        self.tool_timeout_seconds = tool_timeout_seconds
        self.name = name
        self.left = False
        """True after the end of input."""
        self._turn = asyncio.Lock()
        self._reading: Future[str] | None = None

    @property
    def model_name(self) -> str | None:
        return self.name

    async def prepare(self) -> None:
        """Raises `UsageError` without a terminal."""
        if self.ask is input and not sys.stdin.isatty():
            raise UsageError(
                "A person plays at a terminal, and standard input is none; run this in one."
            )

    async def __call__(self, run: RunView) -> None:
        async with self._turn:
            limit = asyncio.timeout(self.timeout_seconds)
            try:
                async with limit:
                    await attach(run, ("bash", "editor", "computer", "mcp"))
                    run.trace.stop_reason = await _Sitting(self, run).to_end()
            except TimeoutError:
                if not limit.expired():
                    raise
                self.say("\nThe time is over.")
                run.trace.stop_reason = "timeout"

    async def line(self) -> str:
        """Wait for a line without blocking the event loop.

        A pending read cannot be cancelled: a line after its run's end belongs to the next run.
        """
        if self._reading is None:
            self._reading = Future()
            # A daemon: a thread blocked on a terminal must not prevent the process's exit.
            threading.Thread(target=self._read, args=(self._reading,), daemon=True).start()
        reading = self._reading
        line = asyncio.shield(asyncio.wrap_future(reading))
        try:
            return await line
        finally:
            if reading.done():
                self._reading = None

    def _read(self, into: Future[str]) -> None:
        try:
            into.set_result(self.ask("> "))
        except BaseException as error:
            into.set_exception(error)


class _Sitting:
    """A run played by a person."""

    def __init__(self, agent: HumanAgent, run: RunView) -> None:
        self.agent, self.run = agent, run
        self.moves = Moves(run, name=agent.name, tool_timeout_seconds=agent.tool_timeout_seconds)
        self.pictures = 0

    async def to_end(self) -> StopReason:
        """Execute commands until there is an answer."""
        shown = now()
        self.agent.say(f"\n{self.run.prompt_text}\n")
        self._show_tools()
        self.agent.say(HELP)
        try:
            return await self._orders()
        finally:
            self.run.trace.extra[HUMAN_SECONDS] = (now() - shown).total_seconds()

    async def _orders(self) -> StopReason:
        while True:
            started = now()
            try:
                line = (await self.agent.line()).strip()
            except EOFError:
                self.agent.left = True
                line = "quit"
            word, _, rest = line.partition(" ")
            if word == "quit":
                return "done"
            if word == "answer":
                self.moves.answer(rest.strip() or await self._lines(), started)
                return "done"
            if word == "tools":
                self._show_tools()
            elif word == "prompt":
                self.agent.say(self.run.prompt_text)
            elif any(tool.name == word for tool in self.run.tools):
                await self._call(word, rest.strip(), started)
            elif word:
                self.agent.say(f"There is no {word!r} here.\n{HELP}")

    async def _lines(self) -> str:
        """Return the lines up to a line with a single dot."""
        lines: list[str] = []
        while (line := await self.agent.line()) != ".":
            lines.append(line)
        return "\n".join(lines)

    async def _call(self, name: str, text: str, started: datetime) -> None:
        try:
            arguments = arguments_of(text)
        except ValueError as error:
            self.agent.say(str(error))
            return
        self._show(await self.moves.call(name, arguments, started))

    def _show(self, result: ToolResult) -> None:
        if result.is_error:
            self.agent.say("error:")
        for block in result.content:
            if isinstance(block, ImageContent):
                self.agent.say(f"[a picture: {self._kept(block)}]")
            else:
                self.agent.say(block.text)
        if not result.content and result.structured_content is not None:
            self.agent.say(exact_json.dumps(result.structured_content).decode())

    def _kept(self, picture: ImageContent) -> Path:
        """Write an image to a temporary file and return its path."""
        self.pictures += 1
        folder = Path(tempfile.gettempdir()) / f"hud-{self.run.trace_id[:12]}"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{self.pictures}.{picture.mime_type.rpartition('/')[2]}"
        path.write_bytes(base64.b64decode(picture.data))
        return path

    def _show_tools(self) -> None:
        for tool in self.run.tools:
            self.agent.say(f"  {signature(tool)}   {tool.description.partition(chr(10))[0]}")


def signature(tool: ToolSpec) -> str:
    """Return a tool's signature, with optional arguments in brackets."""
    required = tool.parameters.get("required") or []
    names = tool.parameters.get("properties") or {}
    shown = [f"{name}=" if name in required else f"[{name}=]" for name in names]
    return " ".join([tool.name, *shown])


def arguments_of(text: str) -> dict[str, Any]:
    """Parse the person's arguments; raises `ValueError`, with a sentence, for invalid ones."""
    if text.startswith("{"):
        try:
            content = exact_json.loads(text)
        except exact_json.JSONDecodeError as error:
            raise ValueError(f"That is no JSON: {error}.") from None
        return dict(content)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"That cannot be read: {error}.") from None
    arguments: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator:
            raise ValueError(f"Write key=value, not {word!r}.")
        try:
            arguments[name] = exact_json.loads(value)
        except exact_json.JSONDecodeError:
            arguments[name] = value
    return arguments
