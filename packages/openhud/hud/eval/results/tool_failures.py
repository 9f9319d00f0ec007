"""Failed tool calls of runs: they are no failures of the runs, and may explain or devalue a reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hud.eval.results.failure_causes import FailedRun
from hud.eval.results.run_record import RunRecord
from hud.eval.results.run_summary import RunSummary
from hud.trace import CALLS, AgentStep, failed_kind, tool_results


@dataclass(frozen=True)
class ToolFailures:
    """Tool calls of runs, and those that failed."""

    calls: int
    by_kind: dict[str, int]
    """Number of failed calls by kind: `error` or `time-out`."""
    hopeless: tuple[float | None, ...]
    """Rewards of the runs whose calls all failed."""

    @property
    def failed(self) -> int:
        """Number of failed calls."""
        return sum(self.by_kind.values())

    def sentence(self) -> str | None:
        """Return the counts as a sentence; None without a failed call."""
        if not self.failed:
            return None
        kinds = ", ".join(
            f"{count:,} {kind}{'s' * (count > 1)}" for kind, count in self.by_kind.items()
        )
        text = f"Tool calls failed: {self.failed:,} of {self.calls:,} ({kinds})."
        rewards = [reward for reward in self.hopeless if reward is not None]
        if rewards:
            text += (
                f" No call succeeded in {len(self.hopeless):,} run{'s' * (len(self.hopeless) > 1)}, "
                f"whose mean reward is {fmean(rewards):.3f}."
            )
        return text


def tool_failures(runs: Sequence[RunSummary]) -> ToolFailures:
    """Return the counts of failed tool calls of `runs`, without those of subagents' runs."""
    calls, by_kind, hopeless = 0, Counter[str](), []
    for run in runs:
        counts = dict(run.tool_calls or {})
        total = counts.pop(CALLS, 0)
        calls += total
        by_kind.update(counts)
        if total and sum(counts.values()) == total:
            hopeless.append(run.reward)
    return ToolFailures(calls, dict(by_kind), tuple(hopeless))


def failed_calls(runs: Sequence[RunRecord]) -> list[FailedRun]:
    """Return an entry for each failed tool call of `runs`, with its text."""
    return [
        FailedRun(failed_kind(result), result.text, run.slug, run.trace_id)
        for run in runs
        for result in tool_results(run.trace.steps)
        if result.is_error
    ]


def cut_turns(runs: Sequence[RunRecord]) -> int:
    """Return the number of turns that ended at their limit of tokens."""
    return sum(
        isinstance(step, AgentStep) and step.finish_reason == "length"
        for run in runs
        for step in run.trace.steps
    )
