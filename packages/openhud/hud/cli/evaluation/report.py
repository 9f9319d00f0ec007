"""Report of `hud eval`: statistics, notes, and next commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hud import settings
from hud.benchmarks.baseline import BaselineScore, baseline_score
from hud.cli.command_line import EvalCommand
from hud.cli.output import console, count, number, seconds, some, wrapped
from hud.eval import Job, JobStatistics, RunSummary, job_statistics
from hud.eval.results.failure_causes import FailedRun, causes
from hud.eval.results.intervals import with_interval
from hud.eval.results.tool_failures import cut_turns, failed_calls, tool_failures


def statistics(job: Job, finished: Sequence[RunSummary]) -> JobStatistics:
    """Return the statistics of a job, including runs before its resumption."""
    return job_statistics(_summaries(job, finished))


def _summaries(job: Job, finished: Sequence[RunSummary]) -> list[RunSummary]:
    return [*finished, *(run.summary() for run in job.runs)]


def percentile(scored: BaselineScore) -> tuple[str, str]:
    """Return the row of a job's score against its benchmark's baseline, with its basis."""
    interval = scored.interval
    mean = with_interval(
        scored.mean, *((interval.low, interval.high) if interval else (None, None))
    )
    return "percentile", f"{mean}  {scored.label}"


def job_json(job: Job, finished: Sequence[RunSummary] = ()) -> dict[str, Any]:
    """Return a job as the JSON document of `hud eval --json`."""
    runs = [
        {
            "trace_id": run.trace_id,
            "slug": run.slug,
            "attempt": run.attempt,
            "reward": run.reward,
            "status": run.trace.status,
            "stop_reason": run.trace.stop_reason,
            "failure_kind": run.failure_kind,
            "error": run.error,
            "answer": run.content,
            "seconds": run.seconds,
            "cost_usd": run.cost_usd,
        }
        for run in job.runs
    ]
    numbers = statistics(job, finished)
    scored = baseline_score(job.benchmark, _summaries(job, finished))
    calls = tool_failures(_summaries(job, finished))
    return {
        "job_id": job.id,
        "name": job.name,
        "group": job.group,
        "reward": numbers.mean_reward,
        "benchmark": job.benchmark,
        "percentile": None if scored is None else {**asdict(scored), "label": scored.label},
        "interrupted": job.interrupted,
        "concurrency": job.concurrency,
        "tool_calls": {"calls": calls.calls, "failed": calls.by_kind},
        "cut_turns": cut_turns(job.runs),
        "statistics": {**asdict(numbers), "no_signal": numbers.no_signal},
        "runs": runs,
    }


def print_job(job: Job, finished: Sequence[RunSummary], again: EvalCommand) -> None:
    """Print the table, tasks without signal, the job's location, and next commands."""
    print_figures(job, finished)
    out, place = console(), settings.load()
    out.print(f"\nJob {job.id}, recorded in {place.api_url or place.home}", markup=False)
    for line in next_steps(job, statistics(job, finished), again):
        out.print(f"  {line}", markup=False)


def print_figures(job: Job, finished: Sequence[RunSummary]) -> None:
    """Print the table, and tasks without signal."""
    out = console()
    numbers = statistics(job, finished)
    out.print()
    rows = figures(numbers, job.group)
    scored = baseline_score(job.benchmark, _summaries(job, finished))
    if scored is not None:
        rows.insert(1, percentile(scored))
    for name, value in rows:
        out.print(f"{name:<12} {value}", markup=False)
    for note in notes(job, numbers, finished):
        out.print(note, markup=False)


def figures(numbers: JobStatistics, group: int) -> list[tuple[str, str]]:
    """Return the rows of the table: name and value."""
    interval = numbers.interval
    mean = with_interval(
        numbers.mean_reward, *((interval.low, interval.high) if interval else (None, None))
    )
    rows = [
        ("mean reward", mean + "  95% interval" * (interval is not None)),
        ("runs", f"{numbers.runs:,} ({count(numbers.tasks, 'task')})"),
    ]
    if group > 1:
        rows.append(("pass@k", _by_k(numbers, numbers.pass_at_k)))
        rows.append(("pass^k", _by_k(numbers, numbers.pass_hat_k)))
        rows.append(("reward std", f"{number(numbers.group_spread)} within groups"))
    else:
        rows.append(("passed", number(numbers.pass_at_k.get(1)) + numbers.over_tasks(1)))
    if numbers.mean_turns is not None:
        rows.append(("turns", f"{numbers.mean_turns:.1f} a run"))
    if numbers.prompt_tokens or numbers.completion_tokens:
        cached = f", {numbers.cached_tokens:,} of them cached" if numbers.cached_tokens else ""
        rows.append(
            ("tokens", f"{numbers.prompt_tokens:,} in{cached}; {numbers.completion_tokens:,} out")
        )
    if numbers.runs == 1 and numbers.seconds:
        rows.append(("latency", seconds(numbers.seconds["max"])))
    elif numbers.seconds:
        rows.append(
            ("latency", ", ".join(f"{name} {seconds(at)}" for name, at in numbers.seconds.items()))
        )
    if numbers.cost_usd is not None:
        unknown = f" ({numbers.unpriced_runs} runs without a price)" * bool(numbers.unpriced_runs)
        rows.append(("cost", f"${numbers.cost_usd:.4f}{unknown}"))
    return rows


def notes(job: Job, numbers: JobStatistics, finished: Sequence[RunSummary] = ()) -> list[str]:
    """Return notes on the numbers: failures, tasks without signal, an early stop."""
    lines: list[str] = []
    failed = [
        FailedRun(run.failure_kind, run.error, run.slug, run.trace_id)
        for run in job.runs
        if run.failure_kind is not None
    ]
    if numbers.failures:
        unmeasured = numbers.runs - numbers.measured
        left_out = f", {unmeasured} without a reward, which enter no mean" * bool(unmeasured)
        many = sum(numbers.failures.values())
        lines.append(f"Failed: {many:,} of {count(numbers.runs, 'run')}{left_out}.")
        lines += failure_lines(failed)
    if (counts := tool_failures(_summaries(job, finished)).sentence()) is not None:
        lines += [counts, *failure_lines(failed_calls(job.runs))]
    if cut := cut_turns(job.runs):
        lines.append(
            f"{count(cut, 'turn')} ended at the limit of tokens (stop reason length); --max-tokens sets it."
        )
    labels = {run.slug: run.task.label for run in job.runs}
    for name, slugs in (("never", numbers.never_passed), ("always", numbers.always_passed)):
        if slugs:
            named = some([labels.get(slug, slug) for slug in slugs])
            first, *more = wrapped(f"No signal, {name} passed: {named}.", 2)
            lines += [first.lstrip(), *more]
    if job.interrupted:
        lines.append("Interrupted; what had ended is recorded.")
    return lines


def failure_lines(failed: Sequence[FailedRun]) -> list[str]:
    """Return failures by cause: number, kind, the error with its place, and an example run."""
    lines: list[str] = []
    for cause in causes(failed):
        first, *more = wrapped(f"{cause.kind}: {cause.error}", 8)
        lines += [f"{len(cause.runs):>5}×  {first.lstrip()}", *more]
        lines.append(f"        hud trace {cause.runs[0].trace_id[:12]}")
    return lines


def next_steps(job: Job, numbers: JobStatistics, again: EvalCommand) -> list[str]:
    """Return the suggested next commands."""
    steps: list[tuple[str, str]] = []
    short_id = job.id[:12]
    if job.interrupted or numbers.measured < numbers.runs:
        steps.append((again.resuming(short_id), "what is missing"))
    elif numbers.tasks == 1 and job.group == 1:
        steps.append((again.of_all(), "every task"))
    elif job.group == 1:
        steps.append((again.repeated(4), "how steady is it?"))
    if job.runs:
        steps.append((f"hud trace {job.runs[0].trace_id[:12]}", "every step of one run"))
    steps.append((f"hud jobs {short_id}", "this table again"))
    steps.append((f"hud export {short_id} -o trajectories.jsonl", "the runs as training data"))
    room = console().width - 6  # Indent and comment mark.
    width = max(len(command) for command, _ in steps)
    if width + max(len(reason) for _, reason in steps) > room:
        width = 0
    return [
        f"{command:<{width}}  # {reason}" if len(command) + len(reason) <= room else command
        for command, reason in steps
    ]


def _by_k(numbers: JobStatistics, chances: dict[int, float]) -> str:
    parts = (f"k={k}: {chance:.3f}{numbers.over_tasks(k)}" for k, chance in chances.items())
    return "  ".join(parts) or "–"
