"""What `hud eval` says at the end: the numbers, what they do not say, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hud import settings
from hud.cli.output import console, count, number, seconds, some, table
from hud.eval import Job, JobStatistics, RunSummary, job_statistics
from hud.eval.intervals import with_interval


def statistics(job: Job, finished: Sequence[RunSummary]) -> JobStatistics:
    """Return the statistics of a job, with what was finished before it was resumed."""
    return job_statistics([*finished, *(run.summary() for run in job.runs)])


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
    return {
        "job_id": job.id,
        "name": job.name,
        "group": job.group,
        "reward": numbers.mean_reward,
        "interrupted": job.interrupted,
        "statistics": {**asdict(numbers), "no_signal": numbers.no_signal},
        "runs": runs,
    }


def print_job(job: Job, finished: Sequence[RunSummary], again: str) -> None:
    """Print the table, what gave no signal, where the job is, and what to type next."""
    out = console()
    numbers = statistics(job, finished)
    rows = table("", "")
    rows.show_header = False
    for name, value in figures(numbers, job.group):
        rows.add_row(name, value)
    out.print()
    out.print(rows)
    for note in notes(job, numbers):
        out.print(note, markup=False)
    place = settings.load()
    out.print(f"\nJob {job.id}, recorded in {place.api_url or place.home}", markup=False)
    for line in next_steps(job, numbers, again):
        out.print(f"  {line}", markup=False)


def figures(numbers: JobStatistics, group: int) -> list[tuple[str, str]]:
    """Return the rows of the table: name and value."""
    found = numbers.interval
    mean = with_interval(numbers.mean_reward, *((found.low, found.high) if found else (None, None)))
    rows = [
        ("mean reward", mean + "  95% interval" * (found is not None)),
        ("runs", f"{numbers.runs:,} of {count(numbers.tasks, 'task')}"),
    ]
    if group > 1:
        rows.append(("pass@k", _by_k(numbers.pass_at_k)))
        rows.append(("pass^k", _by_k(numbers.pass_hat_k)))
        rows.append(("spread", f"{number(numbers.group_spread)} within groups"))
    else:
        rows.append(("passed", number(numbers.pass_at_k.get(1))))
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


def notes(job: Job, numbers: JobStatistics) -> list[str]:
    """Return what a reader must know beside the numbers: failures, tasks without signal, an early stop."""
    said: list[str] = []
    if numbers.failures:
        kinds = ", ".join(f"{many} by the {kind}" for kind, many in numbers.failures.items())
        unmeasured = numbers.runs - numbers.measured
        left_out = f" {count(unmeasured, 'run')} without a reward: in no mean." * bool(unmeasured)
        said.append(f"Failed: {kinds}.{left_out}")
        first = next((run for run in job.runs if run.failure_kind is not None), None)
        if first is not None:
            said.append(f"  first: {first.slug}: {first.error} (hud trace {first.trace_id})")
    if numbers.never_passed:
        said.append(f"No signal, never passed: {some(numbers.never_passed)}.")
    if numbers.always_passed:
        said.append(f"No signal, always passed: {some(numbers.always_passed)}.")
    if job.interrupted:
        said.append("Interrupted; what had ended is recorded.")
    return said


def next_steps(job: Job, numbers: JobStatistics, again: str) -> list[str]:
    """Return commands worth typing now."""
    steps: list[str] = []
    if job.interrupted or numbers.measured < numbers.runs:
        steps.append(f"hud eval {again} --resume {job.id}    # play only what is missing")
    elif numbers.tasks == 1 and job.group == 1:
        steps.append(f"hud eval {again} --all    # every task")
    elif job.group == 1:
        steps.append(f"hud eval {again} --all --group 4    # how steady is it?")
    if job.runs:
        steps.append(f"hud trace {job.runs[0].trace_id}    # everything that happened in a run")
    steps.append(f"hud jobs {job.id}    # this table again")
    steps.append(f"hud export {job.id} -o trajectories.jsonl    # the runs as training data")
    return steps


def _by_k(chances: dict[int, float]) -> str:
    return "  ".join(f"k={k}: {chance:.3f}" for k, chance in chances.items()) or "–"
