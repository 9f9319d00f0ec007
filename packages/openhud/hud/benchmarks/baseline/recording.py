"""Recording of baselines: people do tasks, or reference solvers do, and the results go into this user's file."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from hud.agents.human import HUMAN_SECONDS
from hud.benchmarks.baseline.baseline_file import PersonResult, ReferenceResult, change
from hud.benchmarks.baseline.scores import Baseline
from hud.eval import Job, Taskset
from hud.eval.results.job_statistics import rewards_by_task
from hud.eval.tasksets.taskset import slug_of

if TYPE_CHECKING:
    from hud.agents import HumanAgent
    from hud.benchmarks.benchmark import Benchmark
    from hud.eval import Run

INSTRUCTIONS = (
    "Do each task as well as you can, alone and at your own pace, without a model's help. The time counts from when a "
    "task is shown until it ends. End a task that you cannot do: that is a result as well."
)


def some_id() -> str:
    """Return an id for a person who chose none."""
    return f"anonymous-{secrets.token_hex(4)}"


def open_tasks(benchmark: Benchmark, tasks: Taskset, person: str) -> Taskset:
    """Return the tasks that a person has not done, those that the fewest people did first."""
    attempts = Baseline.of(benchmark).attempts
    done = {slug for slug, people in attempts.items() if person in people}
    left = [task for slug, task in tasks.items() if slug not in done]
    left.sort(key=lambda task: len(attempts.get(slug_of(task), ())))
    return Taskset(tasks.name, left, benchmark=tasks.benchmark)


async def record_person(
    benchmark: Benchmark,
    tasks: Taskset,
    agent: HumanAgent,
    person: str,
    on_result: Callable[[PersonResult], None],
) -> Job:
    """Have a person do tasks at a terminal, one after another; each result is kept as soon as it is graded.

    Runs without a grade are no results, nor is the one during which standard input ended.
    """
    name = f"Human baseline: {tasks.name}"
    job = await Job.start(name, benchmark=benchmark.name)
    try:
        for task in tasks:
            await tasks.filter([slug_of(task)]).run(agent, job=job)
            if agent.left:
                job.interrupted = True
                break
            result = _result(benchmark, person, job.runs[-1])
            if result is not None:
                add_results(benchmark, [result])
                on_result(result)
    finally:
        await job.finish()
    return job


def add_results(benchmark: Benchmark, results: Sequence[PersonResult]) -> None:
    """Keep results of people."""
    change(benchmark.name, lambda file: file.with_people(*results))


async def measure_reference(benchmark: Benchmark, tasks: Taskset, name: str) -> Job:
    """Play tasks with a reference solver, and keep its mean reward on each."""
    job = await tasks.run(benchmark.references[name].make())
    by_task = rewards_by_task([run.summary() for run in job.runs])
    result = ReferenceResult(
        rewards={slug: fmean(rewards) for slug, rewards in by_task.items()},
        at=datetime.now(UTC),
        version=benchmark.package.version,
    )
    change(benchmark.name, lambda file: file.with_reference(name, result))
    return job


def _result(benchmark: Benchmark, person: str, run: Run) -> PersonResult | None:
    if run.reward is None or run.failed:
        return None
    return PersonResult(
        task=run.slug,
        person=person,
        reward=run.reward,
        seconds=run.trace.extra[HUMAN_SECONDS],
        collected="terminal",
        instructions=INSTRUCTIONS,
        at=datetime.now(UTC),
        version=benchmark.package.version,
        trace_id=run.trace_id,
    )
