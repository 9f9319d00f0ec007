"""`hud login`: a key for this machine, confirmed in the browser."""

from __future__ import annotations

import socket
import time
import webbrowser
from typing import Any

import click
import httpx

from hud import __version__, settings
from hud.dotenv import write_dotenv
from hud.errors import PlatformError, UsageError

_ENDINGS = {
    "access_denied": "The login was refused.",
    "expired_token": "The code expired before it was confirmed. Run hud login again.",
}


@click.command("login")
@click.option("--quiet", "-q", is_flag=True, help="Open no browser.")
def command(quiet: bool) -> None:
    """Log this machine in at HUD_API_URL, by confirming a code in the browser with an existing key."""
    now = settings.load()
    if now.api_url is None:
        raise UsageError(
            "There is no server to log in at: hud set HUD_API_URL=http://HOST:PORT names one. The platform of "
            "this machine itself needs no login."
        )
    with httpx.Client(base_url=now.api_url, timeout=30) as client:
        device = {"client_name": socket.gethostname(), "client_version": __version__}
        begun = _post(client, "/auth/device/code", device).json()
        page = begun.get("verification_uri_complete") or begun["verification_uri"]
        click.echo(f"Confirm the code {begun['user_code']} at {page}")
        if not quiet:
            webbrowser.open(page)
        answer = _wait(client, begun)
    path = now.home / ".env"
    write_dotenv(path, {"HUD_API_KEY": answer["api_key"]})
    team = (answer.get("team") or {}).get("name") or "your team"
    click.echo(f"Logged in to {team}. The key is kept in {path}. Try: hud models list")


def _wait(client: httpx.Client, begun: dict[str, Any]) -> dict[str, Any]:
    """Poll until the login is confirmed or refused."""
    interval = float(begun.get("interval") or 5)
    until = time.monotonic() + float(begun["expires_in"])
    while time.monotonic() < until:
        time.sleep(interval)
        answer = _post(client, "/auth/device/token", {"device_code": begun["device_code"]})
        if answer.status_code == 200:
            token: dict[str, Any] = answer.json()
            return token
        detail = answer.json().get("detail") or {}
        error = detail.get("error") if isinstance(detail, dict) else None
        if error == "slow_down":
            interval += 5
        elif error != "authorization_pending" and answer.status_code < 500:
            raise UsageError(_ENDINGS.get(str(error), f"The server ended the login: {detail}."))
    raise UsageError(_ENDINGS["expired_token"])


def _post(client: httpx.Client, path: str, body: dict[str, str]) -> httpx.Response:
    try:
        answer = client.post(path, json=body)
    except httpx.TransportError as error:
        raise PlatformError(
            f"{client.base_url} did not answer: {error or type(error).__name__}.", 503
        ) from error
    if answer.status_code == 404:
        raise UsageError(f"{client.base_url} has no login; is it an OpenHUD server?")
    return answer
