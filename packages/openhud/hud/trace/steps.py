"""The steps of a trace, as they are recorded, stored and sent (`hud.step.v1`).

A rollout reads: task (setup), user (the prompt), then agent and tool steps in turn, then task (evaluate).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from hud.errors import AgentFault
from hud.trace.content import Message, ToolCall, ToolResult
from hud.trace.foreign_steps import understood
from hud.trace.limits import check_answer, check_arguments
from hud.trace.recorded_time import now
from hud.trace.sampled.pictures import Picture

STEP_SCHEMA = "hud.step.v1"
DEEPEST_NESTING = 8
"""Maximum nesting of traces; a run's subagents are limited far below it."""

StopReason = Literal["done", "max_steps", "length", "timeout", "malformed_tool_call"]
TraceStatus = Literal["completed", "error", "cancelled"]


Exclusion = Literal["side_call", "superseded"]
"""Reason why a turn is not trained on. `side_call`: a program's call beside its task, such as a title. `superseded`: an answer in
whose place the program continued another one to the same prompt."""


class Sample(BaseModel):
    """Prompt and sampled tokens of one turn: exactly what is trained on.

    `output_logprobs[i]` is the natural-log probability of `output_token_ids[i]` under the policy that
    sampled it, at the temperature it was sampled with. Both include the stop token if one was sampled.
    """

    # Token lists come from the sampler and are long: assigning must not copy or re-validate them.
    model_config = ConfigDict(revalidate_instances="never")

    prompt_token_ids: list[int] = Field(default_factory=list)
    prompt_chunks: list[dict[str, Any]] | None = None
    output_token_ids: list[int] = Field(default_factory=list)
    output_logprobs: list[float] = Field(default_factory=list)
    checkpoint: str | None = None
    """Id of the checkpoint whose weights sampled this; None for base weights or an unknown policy."""
    swaps: list[tuple[int, str | None]] = Field(default_factory=list)
    """`(place, checkpoint)`: each weight update during the turn, with the position of the first output token sampled after
    it."""
    pictures: list[Picture] = Field(default_factory=list)
    """Pictures of the prompt, in order."""
    temperature: float = 1.0
    """Requested temperature, or the server's. 0: greedy; `output_logprobs` are then those of temperature 1."""
    excluded: Exclusion | None = None
    """Reason why it is recorded and not trained on; None: it is trained on."""


class Usage(BaseModel):
    """Token counts and cost of one model call, or of many summed."""

    model_config = ConfigDict(validate_assignment=True)

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    llm_call_count: int = 1

    @classmethod
    def total(cls, calls: Collection[Usage]) -> Usage:
        """Return the sum of calls; its cost covers the calls with a known cost."""
        if not calls:
            return cls(llm_call_count=0)
        costs = [usage.cost_usd for usage in calls if usage.cost_usd is not None]
        return cls(
            prompt_tokens=sum(usage.prompt_tokens for usage in calls),
            completion_tokens=sum(usage.completion_tokens for usage in calls),
            cached_tokens=sum(usage.cached_tokens for usage in calls),
            llm_call_count=sum(usage.llm_call_count for usage in calls),
            cost_usd=sum(costs) if costs else None,
        )


class Citation(BaseModel):
    """A source that a model cited."""

    type: str
    text: str
    """Cited text: the source's if the provider returns it, else the answer's."""
    source: str
    title: str | None = None
    start_index: int | None = None
    """Offset of the citation in the step's `content`, in characters."""
    end_index: int | None = None


class TaskCall(BaseModel):
    """A call of one half of a template: `setup` returns the prompt, `evaluate` the grade."""

    phase: Literal["setup", "evaluate"]
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: Any = None


class Step(BaseModel):
    """One recorded step. `step_id` counts from 1 and is given by `Trace.record`.

    Assigned attributes are validated: a `ValidationError` (pydantic) in an agent's step is a failure of the agent.
    """

    model_config = ConfigDict(validate_assignment=True)

    step_id: int = 0
    source: Literal["user", "agent", "tool", "task", "subagent", "system"] = "system"
    messages: list[Message] = Field(default_factory=list)
    task_call: TaskCall | None = None
    error: str | None = None
    started_at: datetime = Field(default_factory=now)
    ended_at: datetime | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further data; `extra["state"]` is the environment's state after the step, if it records one."""


class AgentStep(Step):
    """One turn of the agent: one model call, for agents that call models."""

    source: Literal["agent"] = "agent"
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    done: bool = False
    finish_reason: str | None = None
    refusal: str | None = None
    model: str | None = None
    usage: Usage | None = None
    citations: list[Citation] = Field(default_factory=list)
    sample: Sample | None = None


class ToolStep(Step):
    """One tool call and its result."""

    source: Literal["tool"] = "tool"
    call: ToolCall | None = None
    result: ToolResult | None = None


class SubagentStep(Step):
    """A nested run; the tool step after it holds the call and its result.

    `extra` holds the `tool` and the nested run's `model`, `slug`, `reward` and `failure_kind`.
    """

    source: Literal["subagent"] = "subagent"
    subagent: Trace | None = None


def check_step(step: Any) -> None:
    """Raise `AgentFault` for an entry of a trace that is no step, or holds tool calls that cannot be transmitted."""
    if not isinstance(step, Step):
        raise AgentFault(
            f"The trace was given an entry of type {type(step).__name__}; a trace holds steps "
            "(hud.trace.Step, AgentStep, ToolStep)."
        )
    if isinstance(step, AgentStep):
        for call in step.tool_calls:
            check_arguments(call.name, call.arguments)


AnyStep = AgentStep | ToolStep | SubagentStep | Step


_STEP_TYPES: dict[str, type[Step]] = {
    "agent": AgentStep,
    "tool": ToolStep,
    "subagent": SubagentStep,
}


def parse_step(payload: dict[str, Any]) -> AnyStep:
    """Return the step of a `hud.step.v1` payload, from this client or another.

    An unreadable payload becomes a system step that holds it.
    """
    kind = _STEP_TYPES.get(str(payload.get("source")), Step)
    if isinstance(payload.get("subagent"), dict):
        payload = {**payload, "subagent": _nested(payload["subagent"])}
    for shape in (dict, understood):
        try:
            return kind.model_validate(shape(payload))
        except ValidationError:
            continue
    step_id = payload.get("step_id")
    return Step(
        step_id=step_id if isinstance(step_id, int) else 0, extra={"not_understood": payload}
    )


def _nested(payload: dict[str, Any]) -> Trace | dict[str, Any]:
    """Return a nested trace with typed steps, or the payload if it is no trace."""
    try:
        return parse_trace(payload)
    except (ValidationError, TypeError, AttributeError):
        return payload


@cache
def without_samples(depth: int = DEEPEST_NESTING) -> dict[str, Any]:
    """Return the `exclude` argument of a step's dump that removes all tokens, including those of nested traces."""
    left_out: dict[str, Any] = {"sample": True}
    if depth:
        left_out["subagent"] = {"steps": {"__all__": without_samples(depth - 1)}}
    return left_out


class Trace(BaseModel):
    """The recorded steps of one run, in order.

    Assigned attributes are validated. An answer (`content`) that is no text, or too long, raises `AgentFault`: the agent's
    failure, with reward 0.
    """

    model_config = ConfigDict(validate_assignment=True)

    trace_id: str | None = None
    steps: list[SerializeAsAny[Annotated[Step, Field()]]] = Field(default_factory=list)
    status: TraceStatus = "completed"
    stop_reason: StopReason | None = None
    content: str | None = None
    """The agent's answer: the value of the template's first `yield`."""
    extra: dict[str, Any] = Field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, check_answer(value) if name == "content" else value)

    def _repr_html_(self) -> str:
        from hud.trace.notebook.trace_table import trace_html  # Imports this module.

        return trace_html(self)

    def record(self, step: Step) -> Step:
        """Append a finished step; sets its `step_id` and, if missing, `ended_at`."""
        fields = vars(step)  # Hot path: these two values need no validation.
        fields["step_id"] = len(self.steps) + 1
        if step.ended_at is None:
            fields["ended_at"] = now()
        step.__pydantic_fields_set__.update(("step_id", "ended_at"))
        self.steps.append(step)
        return step

    def final(self, get: str) -> Any:
        """Return the last value of the attribute `get` in any step, or None."""
        for step in reversed(self.steps):
            value = getattr(step, get, None)
            if value not in (None, [], ""):
                return value
        return None

    def collect(self, get: str) -> list[Any]:
        """Return every value of the attribute `get` in the steps, in order; lists are flattened."""
        collected: list[Any] = []
        for step in self.steps:
            value = getattr(step, get, None)
            if isinstance(value, list):
                collected.extend(value)
            elif value is not None:
                collected.append(value)
        return collected

    @property
    def error(self) -> str | None:
        """The last recorded error."""
        error: str | None = self.final("error")
        return error

    @property
    def is_error(self) -> bool:
        """True when the run itself failed (a tool error returned to the agent is not a failed run)."""
        return self.status == "error"

    @property
    def is_truncated(self) -> bool:
        """True when a limit ended the run, not the agent."""
        return self.stop_reason in ("max_steps", "length", "timeout")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The agent's tool calls, in order."""
        calls: list[ToolCall] = self.collect("tool_calls")
        return calls

    @property
    def usage(self) -> Usage:
        """Token counts and cost over all model calls."""
        calls = [step.usage for step in self.steps if isinstance(step, AgentStep) and step.usage]
        return Usage.total(calls)


def parse_trace(payload: dict[str, Any]) -> Trace:
    """Return the trace of a JSON dump, with typed steps. A stop reason of another program's own words is left out."""
    steps = [parse_step(step) for step in payload.get("steps", [])]
    reason = payload.get("stop_reason")
    if reason not in get_args(StopReason):
        reason = None
    return Trace.model_validate({**payload, "stop_reason": reason, "steps": steps})


SubagentStep.model_rebuild()
