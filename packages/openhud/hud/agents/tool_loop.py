"""The tool loop: call the model, execute its tool calls, repeat; shared by every agent with a model.

Works on conversations and limits. Token ids are only passed on, as the next turn's exact prefix, so that training uses the
sampled tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from hud.agents.agent import Agent, RunView
from hud.agents.chat_messages import (
    assistant_message,
    opening_messages,
    spoken_messages,
    tool_message,
    user_message,
)
from hud.agents.context_window import drop_oldest_images
from hud.agents.native.attach import attach
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.errors import ContextOverflow, UsageError
from hud.trace import (
    AgentStep,
    ChatMessage,
    ChatModel,
    Completion,
    Continuation,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolResult,
    now,
)

T = TypeVar("T")

CARRY_ON = {
    "length": "Your last message was cut off at its length limit. Go on from where it ended.",
    "malformed_tool_call": "Your last tool call could not be read. Repeat it in the right format.",
}
DECIDE_ALONE = "Nobody can answer questions here. Decide by yourself and finish the task."

_SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
_ALWAYS_GIVEN = frozenset({"return_token_ids", "logprobs"})


class ToolLoopAgent(Agent):
    """An agent that calls a `ChatModel` and the environment's tools."""

    def __init__(
        self,
        model: ChatModel,
        config: AgentConfig | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        self.model = model
        self.config: AgentConfig = config or AgentConfig(model=model.name)
        if params is None and isinstance(self.config, OpenAIChatConfig):
            params = _local_params(self.config.completion_kwargs)
        self.params = params or SamplingParams()

    @property
    def model_name(self) -> str | None:
        return self.config.model_name or self.model.name

    @property
    def hosted_config(self) -> AgentConfig | None:
        return self.config

    async def __call__(self, run: RunView) -> None:
        await play(run, self.model, self.config, self.params)

    async def aclose(self) -> None:
        """Close the connections to the model's server, if any."""
        await self.model.aclose()


def split_completion_kwargs(
    completion_kwargs: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sampling parameters, and further parameters for a server."""
    flat = {**completion_kwargs, **completion_kwargs.get("extra_body", {})}
    flat.pop("extra_body", None)
    sampling = {name: value for name, value in flat.items() if name in _SAMPLING_FIELDS}
    return sampling, {name: value for name, value in flat.items() if name not in sampling}


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Return typed sampling parameters."""
    values = dict(values)
    if "stop" in values:
        stop = values["stop"]
        values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return SamplingParams(**values)


def _local_params(completion_kwargs: dict[str, Any]) -> SamplingParams:
    sampling, rest = split_completion_kwargs(completion_kwargs)
    unknown = rest.keys() - _ALWAYS_GIVEN
    if unknown:
        raise UsageError(
            f"completion_kwargs has {', '.join(sorted(unknown))}, which a model in this process does not "
            f"take; it takes {', '.join(sorted(_SAMPLING_FIELDS))}."
        )
    return sampling_params(sampling)


async def play(
    run: RunView, model: ChatModel, config: AgentConfig, params: SamplingParams | None = None
) -> None:
    """Play `run` with `model`; sets `run.trace.content` and `run.trace.stop_reason`."""
    if run.agent_config:
        config = _for_task(config, run.agent_config)
    run.budget.limit(steps=config.total_steps, tokens=config.total_tokens)
    loop = _Loop(run, model, config, params or SamplingParams())
    limit = asyncio.timeout(config.timeout_seconds)
    try:
        async with limit:
            await attach(run, config.native_tools)
            run.trace.stop_reason = await loop.run_to_end()
    except TimeoutError:
        if not limit.expired():
            raise
        run.trace.stop_reason = "timeout"


def _for_task(config: AgentConfig, wishes: dict[str, Any]) -> AgentConfig:
    """Return the settings updated by the task's; sampling parameters remain the agent's."""
    settable = AgentConfig.model_fields.keys() - {"model", "model_name"}
    unknown = wishes.keys() - settable
    if unknown:
        raise UsageError(
            f"The task's agent_config has {', '.join(sorted(unknown))}; a task may set "
            f"{', '.join(sorted(settable))}."
        )
    own = {name: getattr(config, name) for name in AgentConfig.model_fields}
    try:
        return AgentConfig(**{**own, **wishes})
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(
            f"The task's agent_config: {problem['loc'][0]}: {problem['msg']}."
        ) from None


class _Loop:
    """The state of a run's conversation."""

    def __init__(
        self, run: RunView, model: ChatModel, config: AgentConfig, params: SamplingParams
    ) -> None:
        self.run = run
        self.model = model
        self.config = config
        self.params = params
        self.messages: list[ChatMessage] = opening_messages(
            run.prompt_messages, config.system_prompt
        )
        self.continuation: Continuation | None = None

    async def run_to_end(self) -> StopReason:
        """Take turns until the agent finishes or a limit is reached; returns the stop reason."""
        for turn in range(1, self.config.max_steps + 1):
            started = now()
            if (spent := self.run.budget.take_step()) is not None:
                return spent
            completion = await self._ask()
            if completion is None:
                return "length"
            self.run.budget.take_tokens(completion.usage.completion_tokens)
            ending, nudge = self._judge(completion)
            if turn == self.config.max_steps:
                nudge = None
            self._take(completion, started, done=ending is not None)
            if ending is not None:
                return ending
            await self._call_tools(completion.tool_calls)
            if nudge is not None:
                self.messages.append(user_message(nudge))
        return "max_steps"

    async def _ask(self) -> Completion | None:
        """Return the model's next turn, or None if the conversation exceeds its context window."""
        while True:
            try:
                return await self.model.complete(
                    self.messages,
                    self.run.tools,
                    self._affordable(),
                    continuation=self.continuation,
                    trace_id=self.run.trace_id,
                )
            except ContextOverflow as overflow:
                if not self._make_room():
                    self.run.trace.extra["context_overflow"] = str(overflow)
                    return None

    def _make_room(self) -> bool:
        """Remove images from the conversation if `context_policy` allows it; returns False if none is left."""
        if self.config.context_policy != "drop_images":
            return False
        dropped = drop_oldest_images(self.messages)
        if dropped:
            extra = self.run.trace.extra
            extra["dropped_images"] = extra.get("dropped_images", 0) + dropped
            self.continuation = None  # The prefix has changed.
        return dropped > 0

    def _affordable(self) -> SamplingParams:
        """Return the sampling parameters, with at most the budget's remaining tokens."""
        most = self.run.budget.most_tokens(self.params.max_tokens)
        return (
            self.params if most == self.params.max_tokens else replace(self.params, max_tokens=most)
        )

    def _judge(self, completion: Completion) -> tuple[StopReason | None, str | None]:
        """Return the reason why this turn ends the run, or None, and a message to the model if it continues."""
        reason = completion.finish_reason
        if reason == "context_full":
            if not self._make_room():
                return "length", None
            return None, None if completion.tool_calls else CARRY_ON["length"]
        if reason == "length" or reason == "malformed_tool_call":
            if reason in self.config.stop_on:
                return reason, None
            return None, None if completion.tool_calls else CARRY_ON[reason]
        if completion.tool_calls:
            return None, None
        if completion.refusal is not None:
            return "done", None
        text = (completion.content or "").rstrip()
        if self.config.auto_respond and (not text or text.endswith("?")):
            return None, DECIDE_ALONE
        return "done", None

    def _take(self, completion: Completion, started: datetime, *, done: bool) -> None:
        """Record the turn, and store its ids as the next turn's prefix."""
        trace = self.run.trace
        if completion.content is not None:
            trace.content = completion.content
        if not completion.extended:
            trace.extra["prompt_splits"] = trace.extra.get("prompt_splits", 0) + 1
        self.messages.append(assistant_message(completion))
        sample = completion.sample
        self.run.record(
            AgentStep(
                content=completion.content,
                reasoning=completion.reasoning,
                tool_calls=completion.tool_calls,
                done=done,
                finish_reason=completion.finish_reason,
                refusal=completion.refusal,
                model=completion.model or self.model.name,
                usage=completion.usage,
                citations=completion.citations,
                sample=sample,
                started_at=started,
                extra=completion.extra,
            )
        )
        self.continuation = None
        if sample is not None and sample.prompt_chunks is None:
            self.continuation = Continuation(
                token_ids=sample.prompt_token_ids + sample.output_token_ids,
                covered=spoken_messages(self.messages),
            )

    async def _call_tools(self, calls: list[ToolCall]) -> None:
        """Execute a turn's tool calls, concurrently if possible; results are in call order."""
        timeout = self.config.tool_timeout_seconds
        # A screen or a shell is a single resource: calls of native tools are executed in order.
        native = {tool.name for tool in self.run.tools if tool.native is not None}
        lanes: dict[str, list[tuple[int, ToolCall]]] = {}
        for index, call in enumerate(calls):
            lane = call.name if call.name in native else f"#{index}"
            lanes.setdefault(lane, []).append((index, call))

        async def follow(lane: list[tuple[int, ToolCall]]) -> list[tuple[int, ToolResult]]:
            return [
                (index, await self.run.call_tool(call, timeout=timeout)) for index, call in lane
            ]

        done = await _together([follow(lane) for lane in lanes.values()])
        results = dict(pair for lane in done for pair in lane)
        for index, call in enumerate(calls):
            self.messages.append(tool_message(call, results[index]))


async def _together(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; the first failure cancels the others and is raised as itself."""
    if len(calls) == 1:
        return [await calls[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
