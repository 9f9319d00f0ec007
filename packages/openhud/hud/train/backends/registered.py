"""Registered training backends and sampling servers, and the backends' models on a platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud import settings
from hud.errors import NotFoundError, UsageError
from hud.plugs import load, plugs
from hud.train.backends.backend import Backend

if TYPE_CHECKING:
    from hud.client import Client
    from hud.train.backends.sampling_servers import SamplingServers

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
    from hud.train.backends.sampling_servers import SamplingServers  # Imports torch.

    points = plugs(SAMPLERS)
    if name not in points:
        raise UsageError(f"There are no sampling servers {name!r}: no package registers them.")
    return load(points[name], SamplingServers)  # type: ignore[type-abstract]


async def model_on(backend: str, client: Client, reference: str) -> str:
    """Return the slug of a backend's model, registered now if `reference` is a base model that is not yet.

    Raises `UsageError` for a model that the platform or another backend trains.
    """
    try:
        row = await client.get("/v2/models/resolve", params={"model": reference})
    except NotFoundError:
        values = backend_named(backend).settings(reference, settings.load().environment)
        body = {"name": reference, "backend": {"name": backend, "settings": values}}
        row = await client.post("/v2/models/backend", body)
    trained_by = row["config"].get("backend")
    if trained_by is None or trained_by["name"] != backend:
        place = "on this platform" if trained_by is None else f"at {trained_by['name']!r}"
        raise UsageError(
            f"The weights of {reference!r} are {place}, so backend {backend!r} does not train it: leave the backend out, or "
            "give a base model of it."
        )
    slug: str = row["model_name"]
    return slug
