"""The held-out score of a model as it is, outside a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.client import connect
from hud.eval.scheduler import StopSignal
from hud.inference.models import chat_model
from hud.train.config import TrainConfig
from hud.train.loop import load_tasks
from hud.train.monitoring.progress import Reporter, Score, SilentReporter
from hud.train.rollouts.roles import cast_of, refuse_efforts, subagents_of
from hud.train.rollouts.sampling import Player

if TYPE_CHECKING:
    from hud.eval.rollouts import Provider
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
    subagents = subagents_of(config, tasks)
    if runtime is None:
        from hud.train.rollouts.runtimes import runtime_named  # Loads sockets and processes.

        runtime = runtime_named(config.runtime, tasks)
    client = connect()
    await refuse_efforts(client, config, subagents)
    policy = await chat_model(config.model, client=client)
    cast = await cast_of(client, policy, config, subagents)
    shown = reporter if reporter is not None else SilentReporter()
    player = Player(config, runtime, shown, stop or StopSignal(), subagents)
    try:
        return await player.score(cast, tasks, config.steps)
    finally:
        aclose = getattr(runtime, "aclose", None)
        if aclose is not None:
            await aclose()
