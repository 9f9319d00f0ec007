"""Browser sessions: signing in with a key sets a cookie, which is valid for pages and expires with the key."""

from __future__ import annotations

import secrets
from datetime import timedelta

import sqlalchemy as sa

from hud_platform.access.identity import Identity
from hud_platform.access.keys import Key, Keys, digest
from hud_platform.store import Store, tables

COOKIE = "hud_session"
LIFETIME = timedelta(days=14)


class WebSessions:
    """Sessions of one store, which holds only digests of their secrets."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def begin(self, key: Key) -> str:
        """Start a session and return its secret for the cookie. Deletes expired sessions."""
        secret = secrets.token_urlsafe(32)
        sessions, now = tables.web_sessions, self.store.clock.now()
        row = {"key_id": key.id, "created_at": now, "expires_at": now + LIFETIME}
        with self.store.begin() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.expires_at < now))
            connection.execute(sa.insert(sessions).values(digest=digest(secret), **row))
        return secret

    def find(self, secret: str) -> Identity | None:
        """Return the identity of a session; None if the session or its key is no longer valid."""
        if not secret:
            return None
        sessions = tables.web_sessions
        live = sessions.c.expires_at > self.store.clock.now()
        query = sa.select(sessions.c.key_id).where(sessions.c.digest == digest(secret), live)
        key_id = self.store.value(query)
        key = None if key_id is None else self.keys.by_id(key_id)
        return None if key is None or not key.valid else key.identity

    def end(self, secret: str) -> None:
        """End a session."""
        sessions = tables.web_sessions
        self.store.write(sa.delete(sessions).where(sessions.c.digest == digest(secret)))
