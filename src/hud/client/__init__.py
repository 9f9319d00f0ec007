"""The one way in which the SDK asks the platform: in this process, or over HTTP.

Importing it is cheap. With `HUD_API_URL` set it speaks HTTP to a server; otherwise it drives the same ASGI
application in this process, over `HUD_HOME`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud import settings
from hud.client.client import Client

if TYPE_CHECKING:
    from hud.client.recording import JournalRecorder
    from hud.trace import ChatModel

_clients: dict[tuple[Path, str | None, str | None], Client] = {}
_recorders: dict[Path, JournalRecorder] = {}


def connect() -> Client:
    """Return the client of the platform that the settings name now."""
    now = settings.load()
    key = (now.home, now.api_url, now.api_key)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = Client(api_url=now.api_url, api_key=now.api_key, home=now.home)
    return client


def recorder() -> JournalRecorder:
    """Return this process's recorder for the current `HUD_HOME`."""
    from hud.client.recording import (
        JournalRecorder,  # Loads the platform, which a mere caller may not need.
    )

    home = settings.load().home
    found = _recorders.get(home)
    if found is None or found.closed:
        found = _recorders[home] = JournalRecorder(home, connect())
    return found


async def chat_model(slug: str, checkpoint: str | None = None) -> ChatModel:
    """Return the model behind a slug, at its head or pinned to a checkpoint.

    Raises `NotFoundError`, with near matches, for a slug that is not registered.
    """
    return await connect().chat_model(slug, checkpoint)


def disconnect(home: Path) -> None:
    """Close what this process holds open for a `HUD_HOME`."""
    held = _recorders.pop(home, None)
    if held is not None:
        held.close()
    for key in [key for key in _clients if key[0] == home]:
        _clients.pop(key).close()


__all__ = ["Client", "chat_model", "connect", "disconnect", "recorder"]
