"""Sessions of browsers: who showed a key at `/signin` holds a cookie, which opens pages and dies with the key."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from hud.platform.access.identity import Identity
from hud.platform.access.keys import Key, Keys, digest
from hud.platform.store import Store, tables

COOKIE = "hud_session"
LIFETIME = timedelta(days=14)


class WebSessions:
    """The sessions of one store, of which it holds digests only."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def begin(self, key: Key) -> str:
        """Return the secret of a new session, for the cookie. Sessions that are over are forgotten."""
        secret = secrets.token_urlsafe(32)
        sessions, now = tables.web_sessions, datetime.now(UTC)
        row = {"key_id": key.id, "created_at": now, "expires_at": now + LIFETIME}
        with self.store.begin() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
            connection.execute(sa.insert(sessions).values(digest=digest(secret), **row))
        return secret

    def find(self, secret: str) -> Identity | None:
        """Return who holds a session; None where it is over, or its key is."""
        if not secret:
            return None
        sessions = tables.web_sessions
        live = sessions.c.expires_at > datetime.now(UTC)
        query = sa.select(sessions.c.key_id).where(sessions.c.digest == digest(secret), live)
        key_id = self.store.value(query)
        key = None if key_id is None else self.keys.by_id(key_id)
        return None if key is None or not key.valid else key.identity

    def end(self, secret: str) -> None:
        """End a session."""
        sessions = tables.web_sessions
        self.store.write(sa.delete(sessions).where(sessions.c.digest == digest(secret)))
