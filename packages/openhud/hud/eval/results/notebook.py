"""Representations of jobs, runs and tasksets: `repr` for a prompt, HTML for a notebook. All text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING

from hud.eval.results.failure_causes import FailedRun, causes
from hud.eval.results.intervals import clustered_interval, with_interval
from hud.eval.results.tool_failures import tool_failures
from hud.trace.notebook.html_table import LONGEST, table, titled

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.job import Job
    from hud.eval.results.job_statistics import JobStatistics
    from hud.eval.run import Run


def job_text(job: Job) -> str:
    """Return a job in three lines: name and counts, result, and the command for details."""
    tasks = len(job.results)
    counts = f"{_count(len(job.runs), 'run')} of {_count(tasks, 'task')}"
    failed = [run for run in job.runs if run.failed]
    outcome = f"reward {_reward(job)}"
    if failed:
        first = causes(map(_failed, failed))[0]
        error = " ".join(first.error.split())
        outcome += f", {len(failed)} failed: {len(first.runs)}× {first.kind}: {error[:120]}"
    calls = tool_failures([run.summary() for run in job.runs])
    if calls.failed:
        outcome += f", {calls.failed} of {_count(calls.calls, 'tool call')} failed"
    return f"Job {job.name!r}: {counts}\n{outcome}\nhud jobs {job.id[:12]}"


def run_text(run: Run) -> str:
    """Return a run in one line."""
    reward = "–" if run.reward is None else f"{run.reward:.3f}"
    ended: str = run.trace.stop_reason or run.trace.status
    if run.error is not None:
        ended = f"{run.failure_kind or 'cancelled'}: {' '.join(run.error.split())[:120]}"
    return f"Run {run.trace_id[:12]} of {run.task.label} #{run.attempt}: reward {reward}, {ended}"


def job_html(job: Job) -> str:
    """Return a job as a table of its tasks, with its failures by cause."""
    first = job_text(job).partition("\n")[0]
    rows = []
    for runs in job.results.values():
        rewards = [run.reward for run in runs if run.reward is not None]
        mean = f"{fmean(rewards):.3f}" if rewards else "–"
        rewards_shown = " ".join("–" if run.reward is None else f"{run.reward:.3g}" for run in runs)
        failed = sum(run.failed for run in runs)
        rows.append((runs[0].task.label, mean, rewards_shown, str(failed) if failed else ""))
    failure_causes = causes(_failed(run) for run in job.runs if run.failed)
    rewards_table = table(("task", "reward", "of each run", "failed"), rows)
    broken = [
        (f"{len(cause.runs)}×", cause.kind, cause.error[:LONGEST]) for cause in failure_causes
    ]
    failures = table(("failed", "kind", "error"), broken) if broken else ""
    return (
        f"<div><p><b>{escape(first)}</b><br>reward {escape(_reward(job))}<br>"
        f"<code>hud jobs {escape(job.id[:12])}</code></p>{rewards_table}{failures}</div>"
    )


def run_html(run: Run) -> str:
    """Return a run with its prompt, its answer and its steps."""
    rows = [
        ("prompt", run.prompt_text[:LONGEST]),
        ("answer", (run.content or "")[:LONGEST]),
        ("steps", str(len(run.trace.steps))),
    ]
    shown = table(("", ""), rows)
    return f"<div><p><b>{escape(run_text(run))}</b><br><code>hud trace {escape(run.trace_id[:12])}</code></p>{shown}</div>"


def tasks_html(name: str, tasks: Sequence[Task]) -> str:
    """Return tasks as a table."""
    rows = [(str(place), task.label, task.env) for place, task in enumerate(tasks)]
    counts = _count(len(tasks), "task")
    return titled(f"Taskset {name!r}: {counts}", table(("", "task", "environment"), rows))


def statistics_html(numbers: JobStatistics) -> str:
    """Return statistics as a table of those that are known, and the mean reward of each task."""
    interval = numbers.interval
    mean = with_interval(
        numbers.mean_reward, *((interval.low, interval.high) if interval else (None, None))
    )
    rows: list[tuple[str, object]] = [
        ("mean reward", mean),
        ("measured runs", f"{numbers.measured:,} of {numbers.runs:,}"),
        *(
            (f"pass@{k}", f"{chance:.3f}{numbers.over_tasks(k)}")
            for k, chance in numbers.pass_at_k.items()
        ),
        *((f"failed: {kind}", many) for kind, many in numbers.failures.items()),
        *((f"stopped: {reason}", many) for reason, many in numbers.stop_reasons.items()),
        ("tokens", f"{numbers.prompt_tokens:,} in, {numbers.completion_tokens:,} out"),
        ("cost", None if numbers.cost_usd is None else f"${numbers.cost_usd:.4f}"),
    ]
    tasks = [(slug, f"{reward:.3f}") for slug, reward in numbers.task_rewards.items()]
    shown = table(("", ""), [row for row in rows if row[1] is not None])
    return titled(
        f"Statistics of {_count(numbers.tasks, 'task')}", shown, table(("task", "reward"), tasks)
    )


def _reward(job: Job) -> str:
    clusters = [
        [run.reward for run in runs if run.reward is not None] for runs in job.results.values()
    ]
    interval = clustered_interval([cluster for cluster in clusters if cluster])
    return with_interval(job.reward, *((interval.low, interval.high) if interval else (None, None)))


def _failed(run: Run) -> FailedRun:
    kind = run.failure_kind or "cancelled"
    return FailedRun(kind, run.error, run.slug, run.trace_id, run.reward is not None)


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
