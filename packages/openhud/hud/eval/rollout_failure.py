"""Failure of a rollout: which part is at fault, by the phase in which it broke and by the error.

Only an agent's failures count as reward. Cancellation, a store that cannot be written and an unusable runtime are raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hud.errors import (
    FailureKind,
    RefusedError,
    RolloutError,
    StoreError,
    UsageError,
    located,
)
from hud.eval.grade import Grade
from hud.foreign_code import is_failure, withdraw_cancellation
from hud.trace.sampled.call_samples import MODEL_CALLS

if TYPE_CHECKING:
    from hud.eval.run import LiveRun, Phase, Run

_PART_AT_FAULT: dict[Phase, FailureKind] = {
    "provision": "infrastructure",
    "setup": "environment",
    "agent": "agent",
    "tool": "environment",
    "grade": "grader",
    "over": "infrastructure",
}
_WHEN: dict[Phase, str] = {
    "provision": "while its environment was brought up",
    "setup": "while the environment set the task up",
    "agent": "while the agent was playing",
    "tool": "while a tool was running",
    "grade": "while the answer was graded",
    "over": "after it was graded",
}


def record_failure(run: Run, error: BaseException, *, timed_out: bool = False) -> None:
    """Make the failure that `error` was the outcome of `run`; raises what is not the run's to keep."""
    if not is_failure_of(run, error):
        run.trace.status = "cancelled"
        run.error = f"Cancelled {_WHEN[run.live.phase]}."
        run.grade = Grade.ungraded()
        raise error
    if isinstance(error, StoreError):
        # Not by `fail`, which records a step: that is what cannot be done.
        run.trace.status, run.failure_kind = "error", "infrastructure"
        run.error, run.grade = str(error), Grade.ungraded()
        raise error
    kind = (
        error.kind
        if isinstance(error, RolloutError | RefusedError)
        else _PART_AT_FAULT[run.live.phase]
    )
    unusable = run.live.phase == "provision" and isinstance(error, UsageError)
    if isinstance(error, RefusedError):
        unusable = error.everywhere
    problem = describe(error)
    if timed_out and isinstance(error, TimeoutError):
        if run.live.phase == "tool":
            kind = "agent"  # Its own call was running: as much its time as that between calls.
        if _answered_late(run.live):
            kind = "agent"  # Else it would choose whether a wrong answer counts.
        problem = (
            f"The rollout passed its limit of {run.live.limit_seconds:g} s {_WHEN[run.live.phase]}."
        )
        run.trace.stop_reason = "timeout"
    refusal = run.trace.extra.get(MODEL_CALLS, {}).get("refusal")
    if kind == "agent" and refusal is not None and refusal["kind"] == "infrastructure":
        # Its program waited for the platform, or gave up.
        kind = "infrastructure"
    run.fail(kind, problem)
    if unusable:
        # The runtime itself is wrong (no such file, no such environment), or the model's server knows no such
        # key or model: so it is for every other run.
        raise error


def _answered_late(live: LiveRun) -> bool:
    """Return whether the agent left less time for grading than it took itself."""
    if live.agent_began is None or live.grading_began is None or live.deadline is None:
        return False
    return live.grading_began - live.agent_began > live.deadline - live.grading_began


def is_failure_of(run: Run, error: BaseException) -> bool:
    """Return True for a failure of foreign code, a cancellation of the run's asyncio task by that code included."""
    cancels = run.live.cancels
    if isinstance(error, asyncio.CancelledError) and cancels is not None and not cancels():
        withdraw_cancellation()
    return is_failure(error)


def describe(error: BaseException) -> str:
    """Return one line that says what broke; where, too, if it was not one of our own sentences."""
    if isinstance(error, RolloutError | UsageError):
        return str(error)
    return located(error)
