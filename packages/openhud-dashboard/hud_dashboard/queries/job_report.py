"""Report of a job for its page: numbers, results by task, and failures. Computed from the runs, without queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from hud.benchmarks.baseline import baseline_score
from hud.errors import UsageError
from hud.eval.results.failure_causes import FailedRun, causes
from hud.eval.results.job_statistics import job_statistics
from hud.eval.results.tool_failures import tool_failures
from hud.graders.group_signal import has_signal
from hud_platform.store.job_runs import summary
from hud_platform.store.job_status import OPEN

BINS = 20
PASS_MARK = 1.0
MOST_EXAMPLES = 6
"""Maximum number of runs shown for one cause of failure."""
Run = dict[str, Any]

_SORTS = ("position", "slug", "reward", "spread", "failed", "turns", "tokens", "cost", "seconds")


def numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the numbers of a job."""
    summaries = [summary(run) for run in runs]
    statistics = job_statistics(summaries)
    tools = tool_failures(summaries)
    policies = _policies(runs)
    # pass@k is of one policy: runs of another one are no further samples of it.
    at_k = statistics.pass_at_k if policies <= 1 else {}
    largest = max(at_k, default=None)
    return {
        "runs": len(runs),
        "over": sum(run["status"] not in OPEN for run in runs),
        "queued": sum(run["status"] == "queued" for run in runs),
        "measured": statistics.measured,
        "reward": statistics.mean_reward,
        "low": None if statistics.interval is None else statistics.interval.low,
        "high": None if statistics.interval is None else statistics.interval.high,
        "spread": statistics.group_spread,
        "largest_k": largest,
        "tasks": statistics.tasks,
        "tasks_with_1": statistics.tasks_with_k.get(1, 0),
        "tasks_with_k": statistics.tasks_with_k.get(largest or 1, 0),
        "policies": policies,
        "pass_at_1": at_k.get(1),
        "pass_at_k": None if largest is None else at_k[largest],
        "pass_hat_k": None if largest is None else statistics.pass_hat_k[largest],
        "stop_reasons": dict(Counter(statistics.stop_reasons).most_common()),
        "prompt_tokens": statistics.prompt_tokens,
        "completion_tokens": statistics.completion_tokens,
        "cached_tokens": statistics.cached_tokens,
        "cost_usd": statistics.cost_usd,
        "tool_calls": tools.calls,
        "tool_calls_failed": tools.failed,
        "tool_failures": tools.sentence(),
        "turns": statistics.mean_turns,
        "seconds": statistics.seconds,
        "models": sorted({run["model"] for run in runs if run["model"]}),
        "checkpoints": sorted({run["checkpoint"] for run in runs if run["checkpoint"]}),
    }


def percentile(benchmark: str | None, runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the job's percentile against its benchmark's baseline, with the basis; None for other tasks."""
    scored = baseline_score(benchmark, [summary(run) for run in runs])
    if scored is None:
        return None
    interval = scored.interval
    return {
        "benchmark": benchmark,
        "mean": scored.mean,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "label": scored.label,
    }


def distribution(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the rewards in bins of one width: `low`, `high`, `counts`; None without measured runs."""
    rewards = [run["reward"] for run in runs if run["reward"] is not None]
    if not rewards:
        return None
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    counts = [0] * BINS
    for reward in rewards:
        counts[min(BINS - 1, int((reward - low) / (high - low) * BINS))] += 1
    return {"low": low, "high": high, "counts": counts}


def tasks(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each task with its runs, in the order of their starts. Times and tokens are means over the runs.

    The training signal is that of all runs of the task; where several policies played the job, of the task's newest group.
    """
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        by_task.setdefault(run["slug"], []).append(run)
    several = _policies(runs) > 1
    return [
        _task(number, slug, group, several=several)
        for number, (slug, group) in enumerate(by_task.items())
    ]


def arranged(tasks: list[dict[str, Any]], sort: str, show: str | None) -> list[dict[str, Any]]:
    """Return tasks sorted by a measure (prefix "-": descending), all or those selected by `show`."""
    name, downwards = sort.removeprefix("-"), sort.startswith("-")
    if name not in _SORTS:
        raise UsageError(f"Tasks cannot be sorted by {name!r}; there are {', '.join(_SORTS)}.")
    if show == "no-signal":
        tasks = [task for task in tasks if task["signal"] in ("never", "always")]
    elif show == "failed":
        tasks = [task for task in tasks if task["failed"]]
    measured = [task for task in tasks if task[name] is not None]
    unknown = [task for task in tasks if task[name] is None]
    return sorted(measured, key=lambda task: task[name], reverse=downwards) + unknown


def failures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the failures by cause, most frequent first. A cause includes the failure's kind (agent, environment, ...)."""
    failed = [
        FailedRun(
            kind=run["failure_kind"]
            or ("cancelled" if run["status"] == "cancelled" else "unknown"),
            error=run["error"],
            slug=run["slug"],
            trace_id=run["trace_id"],
            counted=run["reward"] is not None,
        )
        for run in runs
        if run["failure_kind"] or run["status"] in ("error", "cancelled")
    ]
    return [
        {
            "kind": cause.kind,
            "error": cause.error,
            "count": len(cause.runs),
            "tasks": cause.tasks,
            "counted": any(run.counted for run in cause.runs),
            "examples": [run.trace_id for run in cause.runs[:MOST_EXAMPLES]],
        }
        for cause in causes(failed)
    ]


def _policies(runs: Sequence[Run]) -> int:
    """Return the number of policies (a model with its checkpoint) that took a turn."""
    return len({(run["model"], run["checkpoint"]) for run in runs if run["turns"]})


def _task(number: int, slug: str, runs: list[Run], *, several: bool) -> dict[str, Any]:
    rewards = [run["reward"] for run in runs if run["reward"] is not None]
    over = [run for run in runs if run["seconds"] is not None]
    costs = [run["cost_usd"] for run in runs if run["cost_usd"] is not None]
    turns = [run["turns"] for run in over if run["turns"]]
    newest = [run["reward"] for run in runs if run["group_id"] == runs[-1]["group_id"]]
    return {
        "position": number,
        "slug": slug,
        "reward": fmean(rewards) if rewards else None,
        "spread": pstdev(rewards) if len(rewards) > 1 else None,
        "signal": _signal(
            [reward for reward in newest if reward is not None] if several else rewards
        ),
        "failed": sum(bool(run["failure_kind"]) for run in runs),
        "turns": fmean(turns) if turns else None,
        "tokens": fmean(run["prompt_tokens"] + run["completion_tokens"] for run in over)
        if over
        else None,
        "cost": fmean(costs) if costs else None,
        "seconds": fmean(run["seconds"] for run in over) if over else None,
        "runs": sorted(runs, key=lambda run: (run["attempt"], run["started_at"] or "")),
    }


def _signal(rewards: list[float]) -> str | None:
    """Return the training signal in these runs; None if it is not known yet."""
    if len(rewards) < 2:
        return None
    if has_signal(rewards):
        return "some"
    return "always" if rewards[0] >= PASS_MARK else "never"
