"""Counts of a run's tool calls, recorded with the run: its steps need not be read for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hud.trace.content import ToolResult
from hud.trace.steps import Step, ToolStep

TOOL_CALLS = "tool_calls"
"""Key of the counts in a run's `extra`."""
CALLS = "calls"


def tool_results(steps: Sequence[Step]) -> list[ToolResult]:
    """Return the results of tool calls, without those of subagents' runs."""
    return [step.result for step in steps if isinstance(step, ToolStep) and step.result is not None]


def failed_kind(result: ToolResult) -> str:
    """Return the kind of an error result: `error` or `time-out`."""
    return "time-out" if result.timed_out else "error"


def tool_counts(steps: Sequence[Step]) -> dict[str, int] | None:
    """Return the number of `calls`, and of failed ones by kind; None without a call."""
    results = tool_results(steps)
    if not results:
        return None
    failed = Counter(failed_kind(result) for result in results if result.is_error)
    return {CALLS: len(results), **failed}
