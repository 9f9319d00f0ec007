"""Environment `bfcl-multi-turn`: a user's messages, and the APIs to do what they ask for.

The first message is the prompt; the agent ends a turn with the tool `reply`, whose result is the next message. A task
offers the functions of its own APIs, some of them from a later turn on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hud.environment import Environment
from hud.environment.part import OpenPart, Part, RunTool
from hud.environment.run import EnvironmentRun
from hud.environment.tools.tool import parse_arguments
from hud.errors import UsageError
from hud.graders import EvaluationResult
from hud.trace import Message, ToolResult, ToolSpec
from hud_benchmarks.bfcl.dialogues import dialogue
from hud_benchmarks.bfcl.talk import Talk

REPLY = ToolSpec(
    name="reply",
    description="Answer the user's message, once nothing is left to do for it, or to ask for what is missing. Returns "
    "the user's next message.",
    parameters={
        "type": "object",
        "properties": {"message": {"type": "string", "description": "What to tell the user."}},
        "required": ["message"],
        "additionalProperties": False,
    },
)
INSTRUCTIONS = (
    "A user gives you one request after another. Do what each asks for by calling functions, then call `reply`: its "
    "result is the user's next request. Where a request cannot be carried out because a function or a detail is "
    "missing, call no function and say so with `reply`. The conversation ends when `reply` says so."
)
OVER = "The user has nothing more to ask. The conversation is over."


class FunctionTool:
    """A function of the APIs, in one run."""

    def __init__(self, spec: ToolSpec, talk: Talk) -> None:
        self.spec = spec
        self.talk = talk

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        # In the event loop: calls that arrive together act in the order in which they were made.
        del timeout
        if self.talk.over:
            return ToolResult.of_text(OVER, is_error=True)
        try:
            parsed = parse_arguments(arguments, self.spec.name)
            return ToolResult.of_text(self.talk.call(self.spec.name, parsed))
        except (UsageError, ValueError, RecursionError) as error:
            return ToolResult.of_text(f"{self.spec.name}: {error}", is_error=True)


class ReplyTool:
    """The end of a turn."""

    spec = REPLY

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        del arguments, timeout
        return ToolResult.of_text(self.talk.reply() or OVER)


class OpenApis(OpenPart):
    """The APIs of one run."""

    def __init__(self) -> None:
        self.talk: Talk | None = None

    def begin(self, entry: str) -> Talk:
        """Begin a dialogue, in place of the one before."""
        self.close()
        self.talk = Talk(dialogue(entry))
        return self.talk

    def tools(self) -> Mapping[str, RunTool]:
        if self.talk is None:
            return {}
        functions = {spec.name: FunctionTool(spec, self.talk) for spec in self.talk.offered()}
        return {**functions, REPLY.name: ReplyTool(self.talk)}

    def close(self) -> None:
        """Remove the instances of the dialogue."""
        if self.talk is not None:
            self.talk.close()


class Apis(Part[OpenApis]):
    """The package's APIs, with instances of their own for each run."""

    name = "apis"

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenApis]:
        del run
        opened = OpenApis()
        try:
            yield opened
        finally:
            opened.close()


env = Environment("bfcl-multi-turn")
apis = env.add(Apis())


@env.template()
async def conversation(entry: str) -> AsyncGenerator[Any, Any]:
    """Serve a user through several requests."""
    talk = apis.opened.begin(entry)
    yield [
        Message(role="system", content=INSTRUCTIONS),
        Message(role="user", content=talk.dialogue.turns[0]),
    ]
    verdict = talk.verdict()
    yield EvaluationResult(
        reward=float(verdict["valid"]),
        content=verdict.get("error_message"),
        info={
            "turns_reached": talk.turn + 1,
            "turns": len(talk.dialogue.turns),
            "error_type": verdict.get("error_type"),
        },
    )
