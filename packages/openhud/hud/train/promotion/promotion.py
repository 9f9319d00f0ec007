"""Promotion of a checkpoint: the tasks are played with it and with the head, and the gate decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.eval.job import Job
from hud.eval.results.promotion_gate import Gate, subsets_of
from hud.train.config import TrainConfig
from hud.train.monitoring.progress import Reporter
from hud.train.promotion.checkpoint_comparison import play, play_both
from hud.train.promotion.gate_request import GateRequest

if TYPE_CHECKING:
    from hud.environment.templates.task import Provider
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


@dataclass(frozen=True)
class Promotion:
    """The gate's decision about a checkpoint, as the platform gives it, and the jobs of the head and of the checkpoint."""

    decision: dict[str, Any]
    jobs: tuple[Job, Job]


async def promote(
    config: TrainConfig,
    source: str,
    checkpoint: str,
    tasks: Taskset,
    gate: Gate,
    *,
    force: bool = False,
    until_certain: bool = False,
    head_job: Job | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    began: Callable[[Job], None] = lambda job: None,
) -> Promotion | None:
    """Play `tasks` with the head of `config.model` and with a checkpoint of `source`, and move the head if the gate accepts it.

    `head_job` is an earlier job of the head on the same tasks and seeds. `until_certain`, without one, see `play_both`. None after a stop,
    and nothing is decided.
    """
    candidate = config.model_copy(update={"model": source})
    sides = [(config, "head"), (candidate, checkpoint)]
    jobs = [] if head_job is None else [head_job]
    if until_certain:
        jobs = await play_both(sides, tasks, runtime=runtime, until_certain=True)
    for played_config, which in sides[len(jobs) :]:
        job = await play(
            played_config, which, tasks, runtime=runtime, reporter=reporter, stop=stop, began=began
        )
        if stop is not None and stop.stopping:
            return None
        jobs.append(job)
    request = GateRequest(
        source,
        checkpoint,
        (jobs[0].id, jobs[1].id),
        gate,
        subsets_of({task.slug: task.columns for task in tasks}),
        force,
    )
    return Promotion(await request.send(connect(), config.model), (jobs[0], jobs[1]))
