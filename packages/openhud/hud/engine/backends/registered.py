"""Registered training backends and sampling servers, by the names of their entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.engine.backends.backend import Backend
from hud.errors import UsageError
from hud.plugs import load, plugs

if TYPE_CHECKING:
    from hud.engine.backends.sampling_servers import SamplingServers

GROUP = "hud.trainers"
SAMPLERS = "hud.samplers"
PLATFORM = "platform"
"""Name of no backend: the weights are on the platform."""


def backend_named(name: str) -> Backend:
    """Return a backend by its entry point's name. Raises `UsageError` for an unknown name, and for a plug that cannot be imported."""
    points = plugs(GROUP)
    if name not in points:
        raise UsageError(
            f"There is no training backend {name!r}; there are {', '.join([PLATFORM, *points])}."
        )
    # mypy: an abstract class is none of the types that can be instantiated.
    return load(points[name], Backend)  # type: ignore[type-abstract]


def servers_named(name: str) -> SamplingServers:
    """Return a kind of sampling servers by its entry point's name. Raises `UsageError` as `backend_named` does."""
    from hud.engine.backends.sampling_servers import SamplingServers  # Imports torch.

    points = plugs(SAMPLERS)
    if name not in points:
        registered = ", ".join(points) or "none"
        raise UsageError(f"There are no sampling servers {name!r}; packages register {registered}.")
    return load(points[name], SamplingServers)  # type: ignore[type-abstract]
