"""Runtimes of training rollouts, by name: the `runtime` setting of `TrainConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.eval import runtimes
from hud.eval.runtimes import registry
from hud.settings import load

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.runtimes.rollout_runtime import RolloutRuntime


POLL_SECONDS = 1.0
"""Longest time between two looks at hosted rollouts: a step waits for the last of them."""


def training_runtime(name: str, tasks: Sequence[Task]) -> RolloutRuntime:
    """Return the runtime of that name for tasks loaded in this process.

    `hosted` plays whole rollouts on the platform's fleet, in deployed builds. `local` runs in this process, the fastest option, for
    trusted environments; `fork` gives each rollout a process; others are those of `hud.eval.runtimes.registry`. Raises `UsageError` for another name, and for tasks that
    another process cannot load.
    """
    if name == "local":
        return runtimes.LocalRuntime()
    if name == "hosted" and load().embedded:
        raise UsageError(
            "The runtime 'hosted' has the fleet of a server play: set HUD_API_URL, or use local."
        )
    if name not in registry.runtime_kinds():
        return registry.runtime_named(name, poll_seconds=POLL_SECONDS)
    environments = {
        id(task.environment): task.environment for task in tasks if task.environment is not None
    }
    if len(environments) != 1:
        raise UsageError(
            f"The runtime {name!r} needs tasks of one environment that a file defines; use local, or give runtime= in "
            "Python."
        )
    return registry.runtime_named(name, *environments.values())
