"""Models of a chat-completions server: `GET {base_url}/models`."""

from __future__ import annotations

import httpx

from hud.errors import HudError, UsageError
from hud.inference.endpoints import bearer

SECONDS = 30.0
MOST_SHOWN = 20


def served_models(base_url: str, api_key: str | None = None) -> list[str]:
    """Return the ids of the served models, in the server's order.

    Raises `HudError` if the server is unreachable, and `UsageError` if its response is no list.
    """
    url = f"{base_url.rstrip('/')}/models"
    try:
        response = httpx.get(url, headers=bearer(api_key), timeout=SECONDS)
    except httpx.HTTPError as error:
        raise HudError(f"{url} cannot be reached: {error or type(error).__name__}") from None
    except httpx.InvalidURL as error:
        raise UsageError(f"{url} is no address: {error}") from None
    try:
        rows = response.raise_for_status().json()["data"]
        return [str(row["id"]) for row in rows]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"GET {url} answered {response.status_code} and no list of models. Is the address complete (.../v1), "
            "and the key (HUD_API_KEY, or api_key)? Or name the model: -c model=NAME"
        ) from None


def only_model(base_url: str, api_key: str | None = None) -> str:
    """Return the only model of a server; raises `UsageError`, with the names, for none or several."""
    models = served_models(base_url, api_key)
    if len(models) == 1:
        return models[0]
    more = f" and {len(models) - MOST_SHOWN} more" if len(models) > MOST_SHOWN else ""
    named = f"{', '.join(models[:MOST_SHOWN])}{more}" if models else "none"
    raise UsageError(f"{base_url} serves {named}; name one: -c model=NAME")
