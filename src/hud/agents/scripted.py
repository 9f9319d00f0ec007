"""Scripted agents: oracles, baselines, and demonstrations of a format.

    ScriptedAgent(lambda run: ...)                     plays the run itself, sync or async
    ScriptedAgent(policy)                              policy(messages, tools, trace) -> Completion | str

The second form uses the tool loop, so that its traces equal a model's in form.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from hud.agents.agent import Agent, RunView
from hud.agents.tool_loop import play
from hud.agents.types import AgentConfig
from hud.errors import UsageError
from hud.trace import ChatMessage, Completion, Continuation, SamplingParams, ToolSpec, Trace

Script = Callable[[Any], Any]
"""`(run) -> answer | None`, sync or async; a returned answer becomes `run.trace.content`."""
ScriptedPolicy = Callable[
    [list[ChatMessage], list[ToolSpec], Trace], "Completion | str | Awaitable[Completion | str]"
]


class ScriptedAgent(Agent):
    """Agent by a function: of the whole run, or of the conversation, called for each turn."""

    def __init__(
        self, script: Script | ScriptedPolicy, *, name: str = "scripted", **config: Any
    ) -> None:
        self.script = script
        self.name = name
        self.is_policy = _positional_parameters(script) == 3
        if config and not self.is_policy:
            raise UsageError(
                f"A script of the whole run takes no settings, but got {', '.join(sorted(config))}."
            )
        self.config = AgentConfig(**config)

    @property
    def model_name(self) -> str | None:
        return self.name

    async def __call__(self, run: RunView) -> None:
        if self.is_policy:
            await play(run, _PolicyModel(self.name, self.script, run.trace), self.config)
            return
        script: Any = self.script
        answer = script(run)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not None:
            run.trace.content = str(answer)
        if run.trace.stop_reason is None:
            run.trace.stop_reason = "done"


class _PolicyModel:
    """A `ChatModel` over a scripted policy, for one run."""

    def __init__(self, name: str, policy: Any, trace: Trace) -> None:
        self.name = name
        self.policy = policy
        self.trace = trace

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        del params, continuation, trace_id
        turn = self.policy(messages, tools, self.trace)
        if inspect.isawaitable(turn):
            turn = await turn
        if isinstance(turn, str):
            return Completion(content=turn, model=self.name)
        if not isinstance(turn, Completion):
            raise UsageError(
                f"The scripted policy {self.name!r} must return a Completion or a str, "
                f"not {type(turn).__name__}."
            )
        if turn.tool_calls and turn.finish_reason == "stop":
            turn.finish_reason = "tool_calls"
        return turn


def _positional_parameters(script: Callable[..., Any]) -> int:
    """Return the number of the script's required arguments."""
    try:
        signature = inspect.signature(script)
    except (TypeError, ValueError):
        return 1
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(required) not in (1, 3):
        raise UsageError(
            "A script takes (run), or (messages, tools, trace); "
            f"{getattr(script, '__name__', script)!r} takes {len(required)} arguments."
        )
    return len(required)


NOTHING = ScriptedAgent(lambda run: "", name="nothing")
"""Agent that ends its run immediately, with an empty answer."""
