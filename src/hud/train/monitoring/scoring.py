"""The held-out score of a model as it is, outside a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.client import connect
from hud.inference.models import chat_model
from hud.train.config import TrainConfig
from hud.train.monitoring.progress import Reporter, Score
from hud.train.rollouts.sampling import Rollouts, load_tasks

if TYPE_CHECKING:
    from hud.eval.rollouts import Provider
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


async def score(
    config: TrainConfig,
    *,
    held_out: Taskset | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
) -> Score | None:
    """Score a model's head on held-out tasks, as its training does; None where nothing was measured."""
    tasks = load_tasks(held_out, config.held_out or "", "held-out tasks")
    if runtime is None:
        from hud.train.rollouts.runtimes import runtime_named  # Loads sockets and processes.

        runtime = runtime_named(config.runtime, tasks)
    try:
        rollouts = await Rollouts.open(config, tasks, runtime=runtime, reporter=reporter, stop=stop)
        policy = await chat_model(config.model, client=connect())
        return await rollouts.score(await rollouts.models(policy), tasks, config.steps)
    finally:
        aclose = getattr(runtime, "aclose", None)
        if aclose is not None:
            await aclose()
