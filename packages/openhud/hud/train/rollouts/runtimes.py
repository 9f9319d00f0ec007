"""Runtimes of training rollouts, by name: the `runtime` setting of `TrainConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.eval import runtimes
from hud.settings import load

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider


POLL_SECONDS = 1.0
"""Longest time between two looks at hosted rollouts: a step waits for the last of them."""


def runtime_named(name: str, tasks: Sequence[Task]) -> Provider:
    """Return the runtime of that name for tasks loaded in this process.

    `hosted` plays whole rollouts on the platform's fleet, in deployed builds. `local` runs in this process, the fastest option, for
    trusted environments; `fork` gives each rollout a process. Raises `UsageError` for another name, and for tasks that
    another process cannot load.
    """
    if name == "local":
        return runtimes.LocalRuntime()
    if name == "hosted":
        if load().embedded:
            raise UsageError(
                "The runtime 'hosted' has the fleet of a server play: set HUD_API_URL, or use local."
            )
        return runtimes.HostedRuntime(poll_interval=POLL_SECONDS)
    if name.startswith("tcp://"):
        return runtimes.Runtime(name)
    if name not in ("fork", "subprocess"):
        raise UsageError(
            f"There is no runtime {name!r}; there are local, fork, subprocess, hosted and tcp://HOST:PORT."
        )
    worlds = {
        id(task.environment): task.environment for task in tasks if task.environment is not None
    }
    if len(worlds) != 1:
        raise UsageError(
            f"The runtime {name!r} needs tasks of one environment that a file defines; use local, or give runtime= in "
            "Python."
        )
    (source,) = worlds.values()
    chosen = runtimes.ForkRuntime if name == "fork" else runtimes.SubprocessRuntime
    return chosen(source)
