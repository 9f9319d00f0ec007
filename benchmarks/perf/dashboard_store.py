"""A store as a busy team has it, for measuring the dashboard: 1,000 jobs, 100,000 runs, 2 million steps.

    python benchmarks/perf/dashboard_store.py HOME               # makes HOME, in about a minute
    python benchmarks/perf/dashboard_store.py HOME --jobs 20     # a small one, to look at
    python benchmarks/perf/dashboard_store.py HOME --tasksets 5  # jobs of several tasksets

What the runs did is made up; its shape is not: groups of 4, tasks from hopeless to solved, policies that get better,
failures of each kind, and one job that is still running. All jobs are of one taskset unless said otherwise: its pages
then have the most to sum up. `dashboard_team.py` has what is there beside the jobs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from dashboard_team import checkpoint_of, fill_team

from hud_platform.store import Store, tables
from hud_platform.store.ingest import note_models, upsert
from hud_platform.store.tables import LOCAL_TEAM

GROUP = 4
TASKS = 25
STEPS = 20
TASKSETS = ("incident-triage", "sheetbench-50", "web-forms", "count-letters", "unit-tests")
MODELS = ("tiny-grpo", "qwen3-4b-support", "claude-sonnet-4-5", "gpt-5-mini")
FAILURES = (
    ("agent", "The agent's answer is no JSON: Expecting value: line 1 column 1 (char 0)"),
    ("environment", "TimeoutError: the browser did not answer within 30 s"),
    ("infrastructure", "ConnectionError: worker 7f3a went away"),
    ("grader", "KeyError: 'subtotal' in grade_sheet"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--tasksets", type=int, choices=range(1, len(TASKSETS) + 1), default=1)
    parser.add_argument("--team", default=LOCAL_TEAM)
    options = parser.parse_args()
    store = Store.open(options.home)
    fill(store, options.jobs, options.tasksets, options.team)
    store.close()


def fill(store: Store, jobs: int, tasksets_played: int = 1, team: str = LOCAL_TEAM) -> None:
    """Write `jobs` jobs of 100 runs, each of 20 steps, over so many tasksets, and what is there beside them."""
    draw = random.Random(0)
    now = datetime.now(UTC)
    tasksets = [
        {
            "id": f"{number:032x}",
            "team_id": team,
            "name": name,
            "version": 1,
            "created_at": _stored(now),
            "updated_at": _stored(now),
        }
        for number, name in enumerate(TASKSETS, start=0xA0)
    ]
    with store.begin() as connection:
        upsert(connection, tables.tasksets, tasksets)
    rows = [
        (f"{0xA0 + which:032x}", name, [_slug(which, task) for task in range(TASKS)])
        for which, name in enumerate(TASKSETS)
    ]
    fill_team(store, team, rows, MODELS, MODELS[:2])
    for number in range(jobs):
        started = now - timedelta(minutes=37 * (jobs - number - 1), seconds=95)
        job, runs = _job(draw, number, jobs, started, tasksets_played, team)
        steps = [step for run in runs for step in _steps(draw, run)]
        with store.begin() as connection:
            upsert(connection, tables.jobs, [job])
            upsert(connection, tables.runs, runs)
            note_models(connection, runs)
            upsert(connection, tables.steps, steps)


def _job(
    draw: random.Random, number: int, jobs: int, started: datetime, tasksets: int, team: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    which = draw.randrange(tasksets)
    model = draw.choice(MODELS)
    trained = model in MODELS[:2]
    checkpoint = checkpoint_of(model, number // 20) if trained else None
    live = number == jobs - 1
    skill = (number / jobs if trained else 0.6) * 1.6 - 0.8
    identifier = f"{draw.getrandbits(128):032x}"
    runs = []
    for task in range(TASKS):
        ease = skill + 1.4 * (1 - 2 * task / (TASKS - 1))
        group = f"{draw.getrandbits(128):032x}"
        for attempt in range(GROUP):
            running = live and draw.random() < 0.6
            runs.append(
                {
                    **_run(draw, ease, started + timedelta(seconds=draw.random() * 60), running),
                    "trace_id": f"{draw.getrandbits(128):032x}",
                    "team_id": team,
                    "job_id": identifier,
                    "group_id": group,
                    "attempt": attempt,
                    "slug": _slug(which, task),
                    "task": orjson.dumps(
                        {"env": TASKSETS[which], "id": "solve", "args": {"n": task}}
                    ),
                    "model": model,
                    "checkpoint": checkpoint,
                }
            )
    ends = [run["ended_at"] for run in runs if run["ended_at"]]
    job = {
        "id": identifier,
        "team_id": team,
        "name": f"{TASKSETS[which]} · {model}",
        "taskset_id": f"{0xA0 + which:032x}",
        "group_size": GROUP,
        "status": "running" if live else draw.choice(["completed"] * 19 + ["interrupted"]),
        "host": "elsewhere" if live else None,
        "pid": 1 if live else None,
        "extra": "{}",
        "created_at": _stored(started),
        "ended_at": None if live else max(ends),
    }
    return job, runs


def _run(draw: random.Random, ease: float, started: datetime, running: bool) -> dict[str, Any]:
    kind, error = draw.choice(FAILURES) if draw.random() < 0.06 else (None, None)
    level = ease + draw.gauss(0, 0.7)
    score = 0.0 if level < -0.2 else 1.0 if level > 0.4 else round(draw.random(), 2)
    measured = kind in (None, "agent")
    reward = None if running or not measured else 0.0 if kind else score
    seconds = draw.lognormvariate(3, 0.6)
    grade = {"score": reward, "content": "compared with the golden answer", "subscores": []}
    return {
        "status": "running" if running else "error" if kind else "completed",
        "reward": reward,
        "failure_kind": None if running else kind,
        "error": None if running else error,
        "stop_reason": None if running else draw.choice(["done", "done", "max_steps"]),
        "content": None if running else "The answer is 42, because the ledger says so. " * 8,
        "grade": None if running else orjson.dumps(grade),
        "extra": None,
        "step_count": 0 if running else STEPS,
        "turns": 0 if running else STEPS // 2,
        "prompt_tokens": 0 if running else draw.randrange(4_000, 60_000),
        "completion_tokens": 0 if running else draw.randrange(300, 4_000),
        "cached_tokens": 0,
        "cost_usd": None if running else round(draw.random() * 0.05, 5),
        "started_at": _stored(started),
        "ended_at": None if running else _stored(started + timedelta(seconds=seconds)),
    }


def _steps(draw: random.Random, run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(run["step_count"]):
        step: dict[str, Any] = {"step_id": number + 1, "timestamp": "2026-01-01T00:00:00Z"}
        if number == 0:
            step |= {"source": "user", "messages": [{"role": "user", "content": "Find the row."}]}
        elif number % 2:
            call = {"id": f"c{number}", "name": "read_cell", "arguments": {"cell": f"B{number}"}}
            step |= {"source": "agent", "content": "I look.", "tool_calls": [call]}
        else:
            text = f"{draw.random():.6f}"
            result = {"content": [{"type": "text", "text": text}]}
            step |= {"source": "tool", "call": {"name": "read_cell"}, "result": result}
        yield {
            "trace_id": run["trace_id"],
            "step_id": number + 1,
            "payload": orjson.dumps(step),
        }


def _slug(taskset: int, task: int) -> str:
    return f"{TASKSETS[taskset]}/{task:02d}-{'abcdefghij'[task % 10] * 6}"


def _stored(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)


if __name__ == "__main__":
    main()
