"""Models of training backends on a platform: registered there at their first training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud import settings
from hud.engine.backends.registered import backend_named
from hud.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from hud.client import Client


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
