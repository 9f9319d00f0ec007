"""Endpoints of providers: base URL and key.

Precedence: an agent's `base_url` and `api_key`; then, without `gateway`, the provider's key, if set; then the gateway at
`HUD_GATEWAY_URL` (or `HUD_API_URL`), which supports every dialect.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hud import settings
from hud.errors import UsageError
from hud.inference.retries import Provider


@dataclass(frozen=True)
class Home:
    """A provider's base URL, and its environment variables."""

    name: str
    url: str
    url_variable: str
    key_variables: tuple[str, ...]


@dataclass(frozen=True)
class Endpoint:
    """Base URL and key."""

    url: str
    key: str = field(repr=False)
    provider: Provider
    """Name in error messages."""


def endpoint(
    home: Home,
    model: str,
    base_url: str | None = None,
    api_key: str | None = None,
    *,
    gateway: bool = False,
) -> Endpoint:
    """Return the endpoint of `model`; raises `UsageError` without a key.

    With `gateway` the provider's key and address are ignored.
    """
    loaded = settings.load()
    if gateway:
        return _of_gateway(base_url or gateway_url(), api_key or loaded.api_key)
    for variable in home.key_variables:
        own = loaded.environment.get(variable)
        if own or api_key:
            url = base_url or loaded.environment.get(home.url_variable) or home.url
            url = url.rstrip("/")
            return Endpoint(url, api_key or own or "", Provider(url, None if api_key else variable))
    elsewhere = base_url or loaded.gateway_url
    if elsewhere is None:
        raise UsageError(
            f"No key is known for {model!r}: set {home.key_variables[0]}, or HUD_API_URL and HUD_API_KEY "
            "of a platform whose gateway has one."
        )
    return _of_gateway(elsewhere, loaded.api_key)


def path_below(base: str, model: str, action: str) -> str:
    """Return the URL of an action that is a path."""
    del model
    return f"{base}/{action}"


def bearer(key: str | None) -> dict[str, str]:
    """Return the `authorization` header; empty without a key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def gateway_url() -> str:
    """Return the gateway's address. Raises `UsageError` if none is set."""
    url = settings.load().gateway_url
    if url is None:
        raise UsageError(
            "There is no gateway to ask: set HUD_API_URL (or HUD_GATEWAY_URL) and HUD_API_KEY, or leave --gateway out."
        )
    return url


def _of_gateway(url: str, key: str | None) -> Endpoint:
    url = url.rstrip("/")
    # A self-hosted server may require a header and accept any key.
    return Endpoint(url, key or "none", Provider(url, "HUD_API_KEY"))
