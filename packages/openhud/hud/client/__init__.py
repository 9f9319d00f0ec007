"""The SDK's client of the platform: embedded in this process, or over HTTP.

Importing it is cheap. With `HUD_API_URL` it sends requests to a server; otherwise it calls the same ASGI application in
this process, over `HUD_HOME`.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hud import settings
from hud.client.client import Client

if TYPE_CHECKING:
    from hud.client.recording import JournalRecorder, UnstoredRecorder

_clients: dict[tuple[Path, str | None, str | None], Client] = {}
_recorders: dict[tuple[Path, str | None, str | None], JournalRecorder] = {}
_inherited: list[Client] = []
_lock = threading.Lock()


def connect() -> Client:
    """Return the client of the platform in the current settings."""
    with _lock:
        return _connected(settings.load())


def recorder() -> JournalRecorder:
    """Return this process's recorder for the platform in the current settings."""
    from hud.client.recording import JournalRecorder  # Imports serialization libraries.

    now = settings.load()
    key = (now.home, now.api_url, now.api_key)
    with _lock:
        journal_recorder = _recorders.get(key)
        if journal_recorder is None or journal_recorder.closed:
            journal_recorder = JournalRecorder(_journals(now.home, now.api_url), _connected(now))
            _recorders[key] = journal_recorder
        return journal_recorder


def unstored_recorder() -> UnstoredRecorder:
    """Return a new recorder for an audit, with a journal where `recorder` has one; close it."""
    from hud.client.recording import UnstoredRecorder

    now = settings.load()
    with _lock:
        return UnstoredRecorder(_journals(now.home, now.api_url), _connected(now))


def _connected(now: settings.Settings) -> Client:
    key = (now.home, now.api_url, now.api_key)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = Client(
            api_url=now.api_url, api_key=now.api_key, home=now.home, database=now.database_url
        )
    return client


def _journals(home: Path, api_url: str | None) -> Path:
    """Return the folder of journals for the platform at `api_url`; None: the embedded platform."""
    folder = home / "journal"
    return folder if api_url is None else folder / re.sub(r"[^A-Za-z0-9.-]+", "_", api_url)


def disconnect(home: Path) -> None:
    """Close this process's clients and recorders of a `HUD_HOME`."""
    with _lock:
        recorders = [_recorders.pop(key) for key in list(_recorders) if key[0] == home]
        clients = [_clients.pop(key) for key in list(_clients) if key[0] == home]
    for held in recorders:
        held.close()
    for client in clients:
        client.close()


def _forget() -> None:
    """Reset the state in a forked child: database connections do not survive a fork."""
    global _lock
    _lock = threading.Lock()
    # Kept unused: closing them would affect the parent.
    _inherited.extend(_clients.values())
    _clients.clear()
    _recorders.clear()


os.register_at_fork(after_in_child=_forget)

__all__ = ["Client", "connect", "disconnect", "recorder"]
