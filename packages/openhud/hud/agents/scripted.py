"""Scripted agents: oracles, baselines, and demonstrations of a format.

    ScriptedAgent(lambda run: ...)    plays the run itself, sync or async
    ScriptedAgent(policy)             policy(messages, tools, trace) -> text, a ToolCall, a list of them, or a Completion

The second form uses the tool loop, so that its traces equal a model's in form.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hud.agents.agent import Agent, RunView
from hud.agents.tool_loop import play
from hud.agents.types import AgentConfig
from hud.errors import RefusedError, UsageError
from hud.trace import (
    ChatMessage,
    ChatModel,
    Completion,
    Continuation,
    SamplingParams,
    ToolCall,
    ToolSpec,
    Trace,
)

Script = Callable[[Any], Any]
"""`(run) -> answer | None`, sync or async; a returned answer becomes `run.trace.content`."""
Turn = Completion | str | ToolCall | list[ToolCall]
"""A turn of a scripted policy: its text, its tool calls, or both as a `Completion`."""
ScriptedPolicy = Callable[[list[ChatMessage], list[ToolSpec], Trace], "Turn | Awaitable[Turn]"]


class ScriptedAgent(Agent):
    """Agent by a function: of the whole run, or of the conversation, called for each turn.

    Raises `UsageError` for a function of other arguments, and for a generator.
    """

    def __init__(
        self, script: Script | ScriptedPolicy, *, name: str | None = None, **config: Any
    ) -> None:
        self.script = script
        self.name = script_name(script) if name is None else name
        self.is_policy = _is_policy(script)
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
            await play(run, self.chat_model(run.trace), self.config)
            return
        script: Any = self.script
        answer = script(run)
        if inspect.isawaitable(answer):
            answer = await answer
        if _is_calls(answer) or isinstance(answer, Completion):
            raise _wrong_result(
                f"The script {self.name!r} of the whole run returned {_kind(answer)}, which is no answer; "
                "call tools by `await run.call_tool(...)`, or take (messages, tools, trace)."
            )
        if answer is not None:
            run.trace.content = str(answer)
        if run.trace.stop_reason is None:
            run.trace.stop_reason = "done"

    def chat_model(self, trace: Trace) -> ChatModel:
        """Return the policy as a model, of a run with this trace."""
        return _PolicyModel(self.name, self.script, trace)


def script_name(script: Callable[..., Any]) -> str:
    """Return the name of a scripted agent: its function's `model_name`, else its own name.

    A lambda, and a function named `agent`, have the name of their file.
    """
    while isinstance(script, partial):
        script = script.func
    named = getattr(script, "model_name", None) or getattr(script, "__name__", None)
    if named not in ("<lambda>", "agent"):
        return str(named or type(script).__name__)
    code = getattr(script, "__code__", None)
    # Code of a prompt or a notebook has no file.
    if code is not None and Path(code.co_filename).is_file():
        return Path(code.co_filename).stem
    return "scripted"


class _PolicyModel(ChatModel):
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
        if isinstance(turn, ToolCall):
            turn = [turn]
        if _is_calls(turn):
            turn = Completion(tool_calls=_with_ids(turn), model=self.name)
        if not isinstance(turn, Completion):
            raise _wrong_result(
                f"The scripted policy {self.name!r} must return text, a ToolCall, a list of ToolCalls or a "
                f"Completion, not {_kind(turn)}."
            )
        if turn.tool_calls and turn.finish_reason == "stop":
            turn.finish_reason = "tool_calls"
        return turn


def _wrong_result(problem: str) -> RefusedError:
    """Return the error of a script with a wrong result: the job ends, and the run has no reward."""
    return RefusedError(problem, everywhere=True)


def _is_calls(value: Any) -> bool:
    """Return True for a tool call, or a list of tool calls with at least one."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, ToolCall) for item in value)
    return isinstance(value, ToolCall)


def _with_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls of a turn, each with an id of its own."""
    taken: set[str] = set()
    distinct: list[ToolCall] = []
    for call in calls:
        if call.id in taken:
            call = ToolCall(name=call.name, arguments=call.arguments)
        taken.add(call.id)
        distinct.append(call)
    return distinct


def _kind(value: Any) -> str:
    """Return the type of a result; of a list, its items' too."""
    name = type(value).__name__
    if isinstance(value, list | tuple):
        inner = " and ".join(sorted({type(item).__name__ for item in value}))
        return f"{name} of {inner}" if inner else f"an empty {name}"
    return name


def _is_policy(script: Callable[..., Any]) -> bool:
    """Return True for a function of `(messages, tools, trace)`, False for one of `(run)`."""
    name = getattr(script, "__name__", type(script).__name__)
    inner = script if inspect.isroutine(script) else getattr(script, "__call__", script)  # noqa: B004
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise UsageError(f"{name!r} is a generator; an agent's function returns its answer.")
    try:
        signature = inspect.signature(script)
    except (TypeError, ValueError):
        return False
    parameters = signature.parameters.values()
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY
    ]
    if missing:
        raise UsageError(
            f"{name!r} requires the keyword {missing[0]!r}; an agent's function takes (run), or "
            "(messages, tools, trace). Bind others with functools.partial."
        )
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    required = sum(
        parameter.kind in positional and parameter.default is parameter.empty
        for parameter in parameters
    )
    for count, is_policy in ((1, False), (3, True)):
        if required <= count and required > count - 2 and _takes(signature, count):
            if not is_policy:
                _check_takes_run(name, signature)
            return is_policy
    raise UsageError(
        f"An agent's function takes (run), or (messages, tools, trace); {name!r} takes {required} arguments."
    )


def _check_takes_run(name: str, signature: inspect.Signature) -> None:
    """Raise `UsageError` for a function whose only argument has the name of another: it would receive the run."""
    first = next(iter(signature.parameters))
    if first in ("messages", "tools", "trace"):
        raise UsageError(
            f"An agent's function takes (run), or (messages, tools, trace); {name!r} takes ({first}) alone."
        )


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


NOTHING = ScriptedAgent(lambda run: "", name="nothing")
"""Agent that ends its run immediately, with an empty answer."""
