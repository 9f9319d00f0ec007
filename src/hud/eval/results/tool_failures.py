"""Failed tool calls of runs: they are no failures of the runs, and may explain or devalue a reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hud.eval.results.failures import FailedRun
from hud.eval.results.run_record import RunRecord
from hud.trace import AgentStep, ToolStep


@dataclass(frozen=True)
class ToolFailures:
    """Tool calls of runs, and those that failed."""

    calls: int
    failed: tuple[FailedRun, ...]
    """One entry for each failed call, of kind `error` or `time-out`."""
    hopeless: tuple[float | None, ...]
    """Rewards of the runs whose calls all failed."""

    @property
    def by_kind(self) -> dict[str, int]:
        """Number of failed calls by kind."""
        return dict(Counter(call.kind for call in self.failed))

    def sentence(self) -> str | None:
        """Return the counts as a sentence; None without a failed call."""
        if not self.failed:
            return None
        kinds = ", ".join(
            f"{count:,} {kind}{'s' * (count > 1)}" for kind, count in self.by_kind.items()
        )
        text = f"Tool calls failed: {len(self.failed):,} of {self.calls:,} ({kinds})."
        rewards = [reward for reward in self.hopeless if reward is not None]
        if rewards:
            text += (
                f" No call succeeded in {len(self.hopeless):,} run{'s' * (len(self.hopeless) > 1)}, "
                f"whose mean reward is {fmean(rewards):.3f}."
            )
        return text


def tool_failures(runs: Sequence[RunRecord]) -> ToolFailures:
    """Return the failed tool calls of `runs`, without those of subagents' runs."""
    calls, failed, hopeless = 0, [], []
    for run in runs:
        results = [
            step.result
            for step in run.trace.steps
            if isinstance(step, ToolStep) and step.result is not None
        ]
        errors = [result for result in results if result.is_error]
        calls += len(results)
        failed += [
            FailedRun(
                "time-out" if result.timed_out else "error", result.text, run.slug, run.trace_id
            )
            for result in errors
        ]
        if errors and len(errors) == len(results):
            hopeless.append(run.reward)
    return ToolFailures(calls, tuple(failed), tuple(hopeless))


def cut_turns(runs: Sequence[RunRecord]) -> int:
    """Return the number of turns that ended at their limit of tokens."""
    return sum(
        isinstance(step, AgentStep) and step.finish_reason == "length"
        for run in runs
        for step in run.trace.steps
    )
