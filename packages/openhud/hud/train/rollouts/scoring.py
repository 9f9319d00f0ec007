"""Held-out score of a model's head, outside a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.client import connect
from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.inference.models import chat_model
from hud.train.config import TrainConfig
from hud.train.rollouts.held_out import HeldOut, held_out_sets
from hud.train.rollouts.sampling import Rollouts

if TYPE_CHECKING:
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


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
