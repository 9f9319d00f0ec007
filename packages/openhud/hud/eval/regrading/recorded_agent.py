"""`RecordedAgent`: an agent that repeats recorded runs, for their environment to grade the recorded answers.

The record of a run has its prompt, calls, results and answer, and not the state of its environment. The calls of the environment's tools
are repeated, in order, and each result must be the recorded one: then the grader sees the state that it would have seen. A run for
which that fails is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.agents import Agent
from hud.capabilities.capability import FILE_TRACKING, MCP
from hud.errors import AgentFault, RefusedError
from hud.trace import AgentStep, Step, SubagentStep, ToolStep, parse_trace

if TYPE_CHECKING:
    from hud.client import Client
    from hud.eval.run import Run

SOURCE = "graded_from"
"""Entry of a run's `extra`: the run that it repeats."""
_WITHOUT_STATE = (MCP, FILE_TRACKING)
"""Protocols whose calls are tool steps, or that agents do not act by."""
_SHOWN = 80


@dataclass(frozen=True)
class RecordedAnswer:
    """A recorded run to be graded again."""

    trace_id: str
    model: str | None
    reward: float | None
    agent_error: str | None
    """Error of a run that its agent failed, which no grader changes; None: it has an answer."""


class RecordedAgent(Agent):
    """Agent of recorded runs, by their groups and attempts in the new job.

    `repeat_calls` False: the grader reads the answer and the trace alone, and no tool is called.
    """

    def __init__(
        self,
        client: Client,
        answers: Mapping[tuple[str | None, int], RecordedAnswer],
        *,
        repeat_calls: bool = True,
    ) -> None:
        self._client, self._answers = client, answers
        self._repeat_calls = repeat_calls

    async def __call__(self, run: Run) -> None:  # type: ignore[override]
        """Repeat the recorded run. Raises `RefusedError` where the environment's state cannot be that of the record."""
        answer = self._answers[run.group_id, run.attempt]
        run.model = answer.model
        run.trace.extra[SOURCE] = answer.trace_id
        recorded = await self._client.get(f"/v2/trace/{answer.trace_id}/full")
        trace = parse_trace(recorded["trace"])
        steps = [step for step in trace.steps if step.source != "task"]
        _check_prompt(run, steps)
        if self._repeat_calls and answer.agent_error is None:
            _check_capabilities(run)
        for step in steps[1:]:
            repeats = self._repeat_calls and answer.agent_error is None
            if repeats and isinstance(step, ToolStep | SubagentStep):
                await _repeat(run, step)
            else:
                run.record(_copied(step))
        run.trace.content, run.trace.stop_reason = trace.content, trace.stop_reason
        if answer.agent_error is not None:
            raise AgentFault(answer.agent_error)


def _check_prompt(run: Run, steps: list[Step]) -> None:
    prompts = [message.model_dump() for step in steps[:1] for message in step.messages]
    if prompts != [message.model_dump() for message in run.prompt_messages]:
        raise _not_graded(f"the prompt of its task is now another one: {_quoted(run.prompt_text)}")


def _check_capabilities(run: Run) -> None:
    names = [item.name for item in run.capabilities if item.protocol not in _WITHOUT_STATE]
    if names:
        raise _not_graded(
            f"its agent could act through {', '.join(names)}, whose state was not recorded"
        )


async def _repeat(run: Run, step: ToolStep | SubagentStep) -> None:
    """Repeat the call of a step, which must have the recorded result."""
    if isinstance(step, SubagentStep):
        raise _not_graded(f"step {step.step_id} is the run of a subagent, which is not repeated")
    call, result = step.call, step.result
    if call is None or result is None:
        raise _not_graded(f"step {step.step_id} has no call with a result")
    if not any(tool.name == call.name for tool in run.tools):
        raise _not_graded(
            f"step {step.step_id} calls {call.name!r}, which is no tool of its environment"
        )
    now = await run.call_tool(call)
    if now.model_dump() != result.model_dump():
        raise _not_graded(
            f"step {step.step_id}: {call.name!r} now returns {_quoted(now.text)}, and returned {_quoted(result.text)}"
        )


def _copied(step: Step) -> Step:
    """Return a step for another trace: without its cost, which was paid once, and without a sample whose pictures are not in it."""
    if not isinstance(step, AgentStep):
        return step
    usage = None if step.usage is None else step.usage.model_copy(update={"cost_usd": None})
    sample = step.sample
    if sample is not None and any(picture.data is None for picture in sample.pictures):
        sample = None
    return step.model_copy(update={"usage": usage, "sample": sample})


def _not_graded(reason: str) -> RefusedError:
    return RefusedError(f"Not graded again: {reason}.")


def _quoted(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…")


def recorded_answer(run: Mapping[str, Any]) -> RecordedAnswer | str:
    """Return the answer of a recorded run, or the reason why there is none to grade."""
    kind = run["failure_kind"]
    if run["status"] == "running":
        return "still running"
    if run["may_train"] is False:
        return "kept from training by the policy of their source, which copies would lose"
    if kind not in (None, "agent", "grader") or run["status"] == "cancelled":
        return f"without an answer: {kind or run['status']}"
    error = (run["error"] or "The agent failed.") if kind == "agent" else None
    return RecordedAnswer(run["id"], run["model"], run["reward"], error)
