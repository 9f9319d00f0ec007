"""Runtimes by name: `tcp://HOST:PORT`, those of a platform, and kinds that join by entry points of the group `hud.runtimes`.

A kind is a class or a function of an environment, or of the path of its file, that returns a runtime.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.eval.runtimes.hosted import HostedRuntime
from hud.eval.runtimes.per_source import PerSource
from hud.eval.runtimes.remote import Runtime
from hud.eval.runtimes.rollout_runtime import RolloutRuntime, as_runtime
from hud.eval.runtimes.tunnelled import HUDRuntime
from hud.plugs import load, plugs

if TYPE_CHECKING:
    from hud.environment import Environment

GROUP = "hud.runtimes"
OF_A_PLATFORM = ("hud", "hosted")


def runtime_kinds() -> list[str]:
    """Return the names of the kinds that open environments on this machine, or where a plug opens them."""
    return list(_kinds())


def _kinds() -> dict[str, EntryPoint]:
    kinds = plugs(GROUP)
    for name in OF_A_PLATFORM:
        if name in kinds:
            raise UsageError(
                f"{GROUP} {name!r} ({kinds[name].value}) has the name of a runtime of the platform. Rename it."
            )
    return kinds


def runtime_named(
    name: str, source: str | Path | Environment | None = None, *, poll_seconds: float = 2.0
) -> RolloutRuntime:
    """Return a runtime.

    `source` is the environment or its file; None: each task's environment, from its own file. `poll_seconds` is the longest time
    between two looks at hosted rollouts. Raises `UsageError` for an unknown name, or for a kind that cannot be imported.
    """
    if name.startswith("tcp://"):
        return Runtime(name)
    kinds = _kinds()
    if name == "hud":
        return HUDRuntime()
    if name == "hosted":
        return HostedRuntime(poll_interval=poll_seconds)
    if name not in kinds:
        names = ", ".join([*kinds, *OF_A_PLATFORM])
        raise UsageError(f"There is no runtime {name!r}; there are {names} and tcp://host:port.")
    kind = load(kinds[name], object)
    if not callable(kind):
        raise UsageError(
            f"{GROUP} {name!r} ({kinds[name].value}) is no class or function of an environment."
        )
    return as_runtime(kind(source)) if source is not None else PerSource(kind)
