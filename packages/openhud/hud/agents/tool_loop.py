"""The tool loop: call the model, execute its tool calls, repeat; shared by every agent with a model.

Works on conversations and limits. Token ids are only passed on, as the next turn's exact prefix, so that training uses the
sampled tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
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
from hud.agents.context_window import (
    COMPACTION,
    LOST,
    SUMMARIZE,
    SUMMARY,
    drop_oldest_images,
    with_text,
    without_last_turn,
)
from hud.agents.native.attach import attach
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.errors import ContextOverflow, UsageError
from hud.inference.models import chat_model
from hud.trace import (
    AgentStep,
    ChatMessage,
    ChatModel,
    Completion,
    Continuation,
    Message,
    SamplingParams,
    Step,
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
        place = "".join(f"{name}: " for name in problem["loc"][:1])
        raise UsageError(f"The task's agent_config: {place}{problem['msg']}.") from None


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
        self.opening = list(self.messages)
        self.continuation: Continuation | None = None
        self.asked_at = now()
        self.full = False
        """The conversation has reached the threshold of compaction."""
        self.turns = 0
        """Turns that were taken."""
        if run.agent_state is not None:
            self._go_on(run.agent_state)

    def _state(self) -> dict[str, Any]:
        """Return the state after a turn, as plain data."""
        continuation = self.continuation
        return {
            "messages": self.messages,
            "continuation": None if continuation is None else vars(continuation),
            "full": self.full,
            "turns": self.turns,
            "budget": [self.run.budget.steps_left, self.run.budget.tokens_left],
        }

    def _go_on(self, state: Mapping[str, Any]) -> None:
        """Continue after the turn whose state this is."""
        self.messages, self.full, self.turns = state["messages"], state["full"], state["turns"]
        if state["continuation"] is not None:
            self.continuation = Continuation(**state["continuation"])
        steps, tokens = state["budget"]
        self.run.budget.limit(steps=steps, tokens=tokens)

    async def run_to_end(self) -> StopReason:
        """Take turns until the agent finishes or a limit is reached; returns the stop reason."""
        while self.turns < self.config.max_steps:
            self.turns += 1
            if (spent := self.run.budget.take_step()) is not None:
                return spent
            completion = await self._ask()
            if completion is None:
                return "length"
            ending, nudge = self._judge(completion)
            if self.turns == self.config.max_steps:
                nudge = None
            self._take(completion, done=ending is not None)
            if ending is not None:
                return ending
            await self._call_tools(completion.tool_calls)
            if nudge is not None:
                self.messages.append(user_message(nudge))
            await self.run.turn_ended(self._state)
        return "max_steps"

    async def _ask(self) -> Completion | None:
        """Return the model's next turn, or None if the conversation exceeds its context window."""
        if self.full:
            await self._compact()
        while True:
            try:
                return await self._complete(self.model, self.messages, self.continuation)
            except ContextOverflow as overflow:
                if not (await self._compact() or self._drop_images()):
                    self.run.trace.extra["context_overflow"] = str(overflow)
                    return None

    async def _complete(
        self, model: ChatModel, messages: list[ChatMessage], continuation: Continuation | None
    ) -> Completion:
        """Return a model's turn after `messages`; its tokens count for the budget."""
        self.asked_at = now()
        params = self._affordable()
        completion = await model.complete(
            messages,
            self.run.tools,
            params,
            continuation=continuation,
            trace_id=self.run.trace_id,
        )
        drawn = completion.usage.completion_tokens
        self.run.budget.take_tokens(drawn)
        if self.config.compact_at is not None:
            short = params.max_tokens is None or drawn < params.max_tokens
            if short and completion.finish_reason == "length":
                # A model in this process ends so where its window does.
                completion.finish_reason = "context_full"
            self.full = completion.usage.prompt_tokens + drawn >= self.config.compact_at
        return completion

    def _drop_images(self) -> bool:
        """Remove images from the conversation if `context_policy` allows it; returns False if none is left."""
        if self.config.context_policy != "drop_images":
            return False
        dropped = drop_oldest_images(self.messages)
        if dropped:
            extra = self.run.trace.extra
            extra["dropped_images"] = extra.get("dropped_images", 0) + dropped
            self.continuation = None  # The prefix has changed.
        return dropped > 0

    async def _compact(self) -> bool:
        """Replace the turns by a summary of them if `context_policy` allows it; returns False if there is none.

        Turns at the end that leave no room for a summary are left out of it. The agent's own summary continues the ids of
        the conversation; what follows it is a branch of the run.
        """
        self.full = False
        if self.config.compact_at is None:
            return False
        messages, continuation, lost = self.messages, self.continuation, 0
        while len(messages) > len(self.opening):
            try:
                summary = await self._summarize(with_text(messages, SUMMARIZE), continuation)
            except ContextOverflow:
                messages, continuation, lost = without_last_turn(messages), None, lost + 1
                continue
            if summary is None:
                return False
            self._resume(summary, lost)
            return True
        return False

    async def _summarize(
        self, messages: list[ChatMessage], continuation: Continuation | None
    ) -> Completion | None:
        """Return the turn that ends `messages` with a summary; None if the budget has no turn left."""
        if self.run.budget.spent is not None:
            return None
        name = self.config.compact_model
        if name is None:
            completion = await self._complete(self.model, messages, continuation)
        else:
            model = await chat_model(name)
            try:
                completion = await self._complete(model, messages, None)
            finally:
                await model.aclose()
            completion.sample, completion.extended = None, True  # Not the agent's tokens.
        self.run.budget.take_step()
        return completion

    def _resume(self, summary: Completion, lost: int) -> None:
        """Record a summary, and begin the conversation anew with the prompt and it."""
        self.full, self.continuation = False, None
        text = SUMMARY.format(summary=(summary.content or "").strip())
        if lost:
            text += LOST.format(count=lost)
        extra = self.run.trace.extra
        extra[COMPACTION] = extra.get(COMPACTION, 0) + 1
        tokens = summary.usage.prompt_tokens + summary.usage.completion_tokens
        summary.tool_calls = []  # Graders may count the calls of a trace as executed.
        self.run.record(Step(source="user", messages=[Message(content=SUMMARIZE)]))
        self._record(summary, {COMPACTION: {"tokens": tokens, "lost_turns": lost}})
        self.run.record(Step(source="user", messages=[Message(content=text)]))
        self.messages = with_text(self.opening, text)

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
            self.full = self.config.compact_at is not None
            if self.full:
                return None, None  # The request for a summary follows.
            if not self._drop_images():
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

    def _take(self, completion: Completion, *, done: bool) -> None:
        """Record the turn, and store its ids as the next turn's prefix."""
        if completion.content is not None:
            self.run.trace.content = completion.content
        self.messages.append(assistant_message(completion))
        self._record(completion, {}, done=done)
        sample = completion.sample
        self.continuation = None
        if sample is not None and sample.prompt_chunks is None:
            self.continuation = Continuation(
                token_ids=sample.prompt_token_ids + sample.output_token_ids,
                covered=spoken_messages(self.messages),
            )

    def _record(self, completion: Completion, extra: dict[str, Any], *, done: bool = False) -> None:
        trace = self.run.trace
        if not completion.extended:
            trace.extra["prompt_splits"] = trace.extra.get("prompt_splits", 0) + 1
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
                sample=completion.sample,
                started_at=self.asked_at,
                extra={**completion.extra, **extra},
            )
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
