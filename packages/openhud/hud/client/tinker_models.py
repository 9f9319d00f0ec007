"""Models that a Tinker service samples and trains, as the platform knows them."""

from __future__ import annotations

from hud import settings
from hud.client.client import Client
from hud.errors import NotFoundError, UsageError


async def model_on_tinker(client: Client, reference: str) -> str:
    """Return the slug of a model on a Tinker service, registered now if `reference` is a base model of it that is not yet.

    The service is that of `TINKER_BASE_URL`. Raises `UsageError` for a model whose weights are on the platform.
    """
    try:
        found = await client.get("/v2/models/resolve", params={"model": reference})
    except NotFoundError:
        url = settings.load().environment.get("TINKER_BASE_URL") or None
        body = {"name": reference, "tinker": {"base_model": reference, "url": url}}
        found = await client.post("/v2/models/tinker", body)
    if found["config"].get("tinker") is None:
        raise UsageError(
            f"The weights of {reference!r} are on this platform, so it is not trained on a Tinker service: leave the "
            "backend out, or give a base model of the service."
        )
    slug: str = found["model_name"]
    return slug
