"""Keys: made once, shown once, stored as a digest, looked up on every request."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.errors import NotFoundError, UsageError
from hud.platform.access.identity import SCOPES, Identity, Scope
from hud.platform.store import tables
from hud.trace import dashed, new_id, plain

if TYPE_CHECKING:
    from hud.platform.store import Store

PREFIX = "hud_"
CACHE_SECONDS = 1.0
"""How long a revocation made by another process may go unnoticed here."""
USED_EVERY_SECONDS = 60.0
"""How exact `last_used_at` is."""
_MOST_CACHED = 10_000


@dataclass(frozen=True)
class Key:
    """A key without its secret."""

    id: str
    team_id: str
    user_id: str
    name: str
    start: str
    """The first characters of the secret, to tell keys apart."""
    scopes: tuple[Scope, ...]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    @property
    def valid(self) -> bool:
        """True while it opens anything."""
        return self.revoked_at is None and (
            self.expires_at is None or self.expires_at > datetime.now(UTC)
        )

    @property
    def identity(self) -> Identity:
        """Who asks with it."""
        return Identity(
            team_id=self.team_id,
            scopes=frozenset(self.scopes),
            key_id=self.id,
            user_id=self.user_id,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
        )

    def noted(self) -> dict[str, Any]:
        """What the audit log keeps of it."""
        return {"key_id": self.id, "scopes": list(self.scopes), "team_id": self.team_id}

    def shown(self) -> dict[str, Any]:
        """The key as routes answer it."""
        moments = ("created_at", "expires_at", "last_used_at", "revoked_at")
        shown = {name: getattr(self, name) for name in moments}
        return {
            "id": dashed(self.id),
            "team_id": dashed(self.team_id),
            "user_id": dashed(self.user_id),
            "name": self.name,
            "start": self.start,
            "scopes": list(self.scopes),
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_minute": self.tokens_per_minute,
            **{name: None if at is None else at.isoformat() for name, at in shown.items()},
        }


class Keys:
    """The keys of one store. Looking one up costs a hash and, at most once a second, a query."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cache: dict[str, tuple[float, Key | None]] = {}
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    def mint(
        self,
        name: str,
        team_id: str,
        *,
        user_id: str | None = None,
        scopes: Sequence[Scope] = ("train",),
        expires_in: float | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> tuple[Key, str]:
        """Make a key; returns it and its secret, which is stored nowhere. `expires_in` is in seconds."""
        if not name.strip():
            raise UsageError("A key needs a name that says what it is for.")
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UsageError(
                f"There is no scope {unknown[0] if unknown else ''!r}; there are {', '.join(SCOPES)}."
            )
        for limit in (requests_per_minute, tokens_per_minute, expires_in):
            if limit is not None and limit <= 0:
                raise UsageError("Limits and lifetimes of a key must be greater than 0.")
        secret = PREFIX + secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        key = Key(
            id=new_id(),
            team_id=team_id,
            user_id=user_id or new_id(),
            name=name.strip(),
            start=secret[: len(PREFIX) + 6],
            scopes=tuple(scopes),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            created_at=now,
            expires_at=None if expires_in is None else now + timedelta(seconds=expires_in),
            last_used_at=None,
            revoked_at=None,
        )
        row = {**vars(key), "scopes": list(key.scopes), "digest": digest(secret)}
        with self.store.begin() as connection:
            connection.execute(sa.insert(tables.keys).values(**row))
        return key, secret

    def find(self, secret: str) -> Key | None:
        """Return the valid key that `secret` is, or None."""
        wanted = digest(secret)
        now = time.monotonic()
        cached = self._cache.get(wanted)
        if cached is None or cached[0] < now:
            cached = (now + CACHE_SECONDS, self._read(wanted))
            with self._lock:
                if len(self._cache) >= _MOST_CACHED:
                    self._cache.clear()
                self._cache[wanted] = cached
        key = cached[1]
        if key is None or not key.valid:
            return None
        if self._used.get(key.id, 0.0) < now - USED_EVERY_SECONDS:
            self._used[key.id] = now
            self._touch(key.id)
        return key

    def cached(self, secret: str) -> Key | None:
        """Return the key if it was looked up a moment ago; no query."""
        found = self._cache.get(digest(secret))
        if found is None or found[0] < time.monotonic():
            return None
        return found[1] if found[1] is not None and found[1].valid else None

    def by_id(self, key_id: str) -> Key | None:
        """Return the key with this id; it may open nothing any more."""
        keys = tables.keys
        with self.store.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.id == key_id)).one_or_none()
        return None if row is None else _key(row)

    def list(self, team_id: str) -> list[Key]:
        """Return a team's keys, newest first; those that open nothing any more are among them."""
        keys = tables.keys
        query = sa.select(keys).where(keys.c.team_id == team_id)
        with self.store.read() as connection:
            rows = connection.execute(query.order_by(keys.c.created_at.desc(), keys.c.id))
            return [_key(row) for row in rows]

    def revoke(self, team_id: str, reference: str) -> Key:
        """Make a key, named by id, start of an id, or name, open nothing any more; at once in this process."""
        wanted = plain(reference)
        known = [key for key in self.list(team_id) if key.revoked_at is None]
        found = [key for key in known if wanted in (key.id, key.name)] or [
            key for key in known if len(wanted) >= 4 and key.id.startswith(wanted)
        ]
        if len(found) != 1:
            raise NotFoundError(
                f"There is no key {reference!r}; hud keys list names them."
                if not found
                else f"Several keys are called {reference!r}; give the id."
            )
        keys = tables.keys
        with self.store.begin() as connection:
            connection.execute(
                sa.update(keys).where(keys.c.id == found[0].id).values(revoked_at=datetime.now(UTC))
            )
        self._cache.clear()
        return next(key for key in self.list(team_id) if key.id == found[0].id)

    def any(self) -> bool:
        """True where there is a key that opens something."""
        keys = tables.keys
        with self.store.read() as connection:
            rows = connection.execute(sa.select(keys).where(keys.c.revoked_at.is_(None)))
            return any(_key(row).valid for row in rows)

    def _read(self, wanted: str) -> Key | None:
        keys = tables.keys
        with self.store.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.digest == wanted)).one_or_none()
        # The index found it by comparing digests of what was sent, which tell nothing of the secret; the last
        # comparison takes the same time wherever they differ.
        if row is None or not hmac.compare_digest(row.digest, wanted):
            return None
        return _key(row)

    def _touch(self, key_id: str) -> None:
        keys = tables.keys
        with self.store.begin() as connection:
            connection.execute(
                sa.update(keys).where(keys.c.id == key_id).values(last_used_at=datetime.now(UTC))
            )


def digest(secret: str) -> str:
    """Return what is stored of a secret. It is 256 random bits: a slow hash would protect nothing more."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: sa.Row[Any]) -> Key:
    values = {name: value for name, value in row._mapping.items() if name != "digest"}
    return Key(**{**values, "scopes": tuple(values["scopes"])})
