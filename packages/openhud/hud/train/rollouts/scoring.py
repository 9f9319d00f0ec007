"""Held-out scores outside a training run: of a model's head, and of two checkpoints on the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.intervals import clustered_interval
from hud.eval.results.paired_differences import (
    Difference,
    Pairing,
    Rewards,
    pair,
    rewards_by_attempt,
)
from hud.eval.results.promotion_gate import (
    Gate,
    Subsets,
    difference_shown,
    evidence,
    subsets_of,
)
from hud.eval.results.task_families import few_families
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.inference.models import chat_model
from hud.trace.ids import is_id
from hud.train.config import TrainConfig
from hud.train.monitoring.progress import Reporter, Score
from hud.train.rollouts.held_out import HeldOut, held_out_sets
from hud.train.rollouts.sampling import Rollouts, load_tasks

if TYPE_CHECKING:
    from hud.environment.templates.task import Provider
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


@dataclass(frozen=True)
class Measured:
    """A mean with its 95% interval over tasks: None for fewer than two tasks."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Promotion:
    """The gate's decision about a checkpoint, as the platform gives it, and the jobs of the head and of the checkpoint."""

    decision: dict[str, Any]
    jobs: tuple[Job, Job]


@dataclass(frozen=True)
class Comparison:
    """The scores of two checkpoints, and their difference task by task."""

    model: str
    first: str
    second: str
    first_score: Measured
    second_score: Measured
    pairing: Pairing
    difference: Difference
    """Second minus first."""
    jobs: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Verdict by the interval of the difference."""
        if self.difference.identical:
            return "no difference"
        if self.pairing.verdict in (None, "noise"):
            return "no difference that these tasks can show"
        return f"{self.second if self.pairing.verdict == 'better' else self.first} is better"

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data, without its tasks."""
        return {
            "model": self.model,
            "first": self.first,
            "second": self.second,
            "first_score": asdict(self.first_score),
            "second_score": asdict(self.second_score),
            "difference": difference_shown(self.difference),
            "subsets": [difference_shown(subset) for subset in self.pairing.subsets],
            "tasks": self.difference.tasks,
            "jobs": self.jobs,
            "verdict": self.verdict,
            "evidence": evidence(self.difference),
            "note": few_families(change.slug for change in self.pairing.changes),
        }


async def score(
    config: TrainConfig,
    *,
    held_out: Taskset | Sequence[Taskset] | None = None,
    stop: StopSignal | None = None,
) -> Score | None:
    """Score a model's head on held-out tasks, as in training; None without a measured run.

    Raises `UsageError` without held-out tasks.
    """
    from hud.train.rollouts.runtimes import training_runtime  # Imports sockets and processes.

    sets = HeldOut(held_out_sets(held_out, config.held_out))
    if not sets:
        raise UsageError("There are no held-out tasks: give a file, a folder or benchmark:NAME.")
    runtime = training_runtime(config.runtime, sets.tasks)
    try:
        rollouts = await Rollouts.open(config, sets.tasks, runtime=runtime, stop=stop)
        policy = await chat_model(config.model, client=connect())
        return await rollouts.score(await rollouts.models(policy), sets, config.steps)
    finally:
        await as_runtime(runtime).aclose()


async def compare(
    config: TrainConfig,
    first: str,
    second: str,
    tasks: Taskset,
    *,
    runtime: Provider,
) -> Comparison:
    """Play `tasks` with both checkpoints, on the same seeds, `eval_group` times each."""
    jobs = [
        await play(config, checkpoint, tasks, runtime=runtime) for checkpoint in (first, second)
    ]
    before, after = (rewards_by_attempt(job.runs) for job in jobs)
    subsets = subsets_of({task.slug: task.columns for task in tasks})
    comparison = compared(config.model, first, second, before, after, subsets)
    return replace(comparison, jobs=(jobs[0].id, jobs[1].id))


async def play(
    config: TrainConfig,
    checkpoint: str,
    tasks: Taskset,
    *,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    began: Callable[[Job], None] = lambda job: None,
) -> Job:
    """Play `tasks` with a checkpoint, with held-out settings, in a separate job, which is passed to `began`."""
    chosen = load_tasks(tasks, "", "tasks to compare on")
    rollouts = await Rollouts.open(config, chosen, runtime=runtime, reporter=reporter, stop=stop)
    model = await chat_model(config.model, checkpoint, client=connect())
    name = f"{config.model} evaluation at {_short(checkpoint)}"
    job = await Job.start(
        name,
        group=config.eval_group,
        planned=len(chosen) * config.eval_group,
        taskset=tasks.name,
        taskset_id=tasks.taskset_id,
    )
    began(job)
    try:
        await rollouts.play_held_out(await rollouts.models(model), chosen, job)
    finally:
        job.interrupted = job.interrupted or rollouts.stop.stopping
        await job.finish()
    return job


async def promote(
    config: TrainConfig,
    source: str,
    checkpoint: str,
    tasks: Taskset,
    gate: Gate,
    *,
    force: bool = False,
    head_job: Job | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    began: Callable[[Job], None] = lambda job: None,
) -> Promotion | None:
    """Play `tasks` with the head of `config.model` and with a checkpoint of `source`, and move the head if the gate accepts it.

    `head_job` is an earlier job of the head on the same tasks and seeds. None after a stop, and nothing is decided.
    """
    candidate = config.model_copy(update={"model": source})
    sides = [(config, "head"), (candidate, checkpoint)]
    jobs = [] if head_job is None else [head_job]
    for played_config, which in sides[len(jobs) :]:
        job = await play(
            played_config, which, tasks, runtime=runtime, reporter=reporter, stop=stop, began=began
        )
        if stop is not None and stop.stopping:
            return None
        jobs.append(job)
    body = {
        "checkpoint_id": checkpoint,
        "source_model_id": source,
        "jobs": [job.id for job in jobs],
        "gate": asdict(gate),
        "subsets": subsets_of({task.slug: task.columns for task in tasks}),
        "force": force,
    }
    decision: dict[str, Any] = await connect().post(f"/v2/models/{config.model}/promote", body)
    return Promotion(decision, (jobs[0], jobs[1]))


def _short(checkpoint: str) -> str:
    """Return a checkpoint's name, or the start of its id."""
    return checkpoint[:8] if is_id(checkpoint) else checkpoint


def compared(
    model: str,
    first: str,
    second: str,
    first_rewards: Rewards,
    second_rewards: Rewards,
    subsets: Subsets | None = None,
) -> Comparison:
    """Compare rewards by task. Raises `UsageError` if no task was measured with both checkpoints."""
    pairing = pair(first_rewards, second_rewards, subsets)
    if pairing.overall is None:
        raise UsageError("No task was measured with both checkpoints; hud jobs shows why.")
    both = [change.slug for change in pairing.changes]
    return Comparison(
        model=model,
        first=first,
        second=second,
        first_score=_measured([first_rewards[slug] for slug in both]),
        second_score=_measured([second_rewards[slug] for slug in both]),
        pairing=pairing,
        difference=pairing.overall,
    )


def _measured(rewards: Sequence[Sequence[float | None]]) -> Measured:
    clusters = [[reward for reward in group if reward is not None] for group in rewards]
    mean = sum(map(sum, clusters)) / sum(map(len, clusters))
    interval = clustered_interval(clusters)
    return Measured(mean) if interval is None else Measured(mean, interval.low, interval.high)
