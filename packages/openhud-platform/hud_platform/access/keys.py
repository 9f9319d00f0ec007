"""API keys: the secret is shown once, stored as a digest, and looked up on every request."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from hud.errors import NotFoundError, PlatformError, UsageError
from hud.trace import dashed, new_id, plain
from hud_platform.access.identity import FLEET, SCOPES, Identity, KeyLimits, Scope
from hud_platform.store import Store, tables

PREFIX = "hud_"
CACHE_SECONDS = 1.0
"""Lifetime of cached keys, in seconds: the maximum delay of a revocation by another process."""
USED_EVERY_SECONDS = 60.0
"""Resolution of `last_used_at`, in seconds."""
_MOST_CACHED = 10_000
MOST_MATCHING = 10
"""Maximum number of keys that a name or the start of an id stands for."""


@dataclass(frozen=True)
class Key:
    """A key without its secret."""

    id: str
    team_id: str
    user_id: str
    name: str
    start: str
    """First characters of the secret, to distinguish keys."""
    scopes: tuple[Scope | Literal["fleet"], ...]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    parent_id: str | None = None
    """Key that confirmed it, of a login, or made it, if that has limits: this key shares its limits, and ends with it."""
    shared_limits: tuple[KeyLimits, ...] = ()
    """Limits of its parents, those of the topmost last."""

    @property
    def valid(self) -> bool:
        """True unless the key is revoked or expired."""
        return self.revoked_at is None and (
            self.expires_at is None or self.expires_at > datetime.now(UTC)
        )

    @property
    def is_pass(self) -> bool:
        """True for a pass of the fleet."""
        return FLEET in self.scopes

    @property
    def identity(self) -> Identity:
        """Identity of requests with this key."""
        return Identity(
            team_id=self.team_id,
            scopes=frozenset(scope for scope in self.scopes if scope != "fleet"),
            worker=self.is_pass,
            key_id=self.id,
            user_id=self.user_id,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            shared_limits=self.shared_limits,
        )

    def noted(self) -> dict[str, Any]:
        """Fields of the key in the audit log."""
        return {"key_id": self.id, "scopes": list(self.scopes), "team_id": self.team_id}

    def shown(self) -> dict[str, Any]:
        """Fields of the key in responses of routes."""
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


def is_valid_key() -> sa.ColumnElement[bool]:
    """Return the condition of `Key.valid` for the table of keys."""
    keys = tables.keys
    unexpired = sa.or_(keys.c.expires_at.is_(None), keys.c.expires_at > datetime.now(UTC))
    return sa.and_(keys.c.revoked_at.is_(None), unexpired)


def is_pass() -> sa.ColumnElement[bool]:
    """Return the condition of `Key.is_pass` for the table of keys."""
    return sa.cast(tables.keys.c.scopes, sa.Text) == f'["{FLEET}"]'


class Keys:
    """Keys of one store. A lookup costs a hash and, at most once a second for each key, a query."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cache: dict[str, tuple[float, Key | None]] = {}
        self._revocations = 0
        """Number of revocations in this process."""
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    def mint(
        self,
        name: str,
        team_id: str,
        *,
        scopes: Sequence[Scope | Literal["fleet"]] = ("train",),
        expires_in: float | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        maker: Key | None = None,
    ) -> tuple[Key, str]:
        """Create a key; returns it and its secret, which is not stored. `expires_in` is in seconds.
        Lifetime and limits cannot exceed those of `maker`: `PlatformError` 403. A maker with limits shares them with the key, which
        is revoked with it. Raises `UsageError` for an empty name,
        unknown or no scopes, and limits that are not positive.
        """
        if not name.strip():
            raise UsageError("A key needs a name that describes its purpose.")
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if (unknown or not scopes) and tuple(scopes) != (FLEET,):
            raise UsageError(
                f"There is no scope {unknown[0] if unknown else ''!r}; there are {', '.join(SCOPES)}."
            )
        for limit in (requests_per_minute, tokens_per_minute, expires_in):
            if limit is not None and limit <= 0:
                raise UsageError("Limits and lifetimes of a key must be greater than 0.")
        now = datetime.now(UTC)
        expires_at = None if expires_in is None else now + timedelta(seconds=expires_in)
        if maker is not None:
            expires_at = _within("live until", expires_at, maker.expires_at)
            requests_per_minute = _within(
                "requests a minute:", requests_per_minute, maker.requests_per_minute
            )
            tokens_per_minute = _within(
                "tokens a minute:", tokens_per_minute, maker.tokens_per_minute
            )
        with self.store.begin() as connection:
            return _insert(
                connection,
                team_id=team_id,
                user_id=new_id(),
                name=name.strip(),
                scopes=tuple(scopes),
                requests_per_minute=requests_per_minute,
                tokens_per_minute=tokens_per_minute,
                expires_at=expires_at,
                parent_id=maker.id if maker is not None and maker.identity.is_limited else None,
            )

    def mint_like(self, key_id: str, name: str) -> tuple[Key, str] | None:
        """Create a key with the permissions and the expiry of another one; None if that one is no longer valid."""
        keys = tables.keys
        with self.store.begin() as connection:
            # Locked: a key that is revoked concurrently must not get a valid child.
            row = connection.execute(
                sa.select(keys).where(keys.c.id == key_id).with_for_update()
            ).one_or_none()
            if row is None or not _key(row).valid:
                return None
            parent = _key(row)
            return _insert(
                connection,
                team_id=parent.team_id,
                user_id=parent.user_id,
                name=name,
                scopes=parent.scopes,
                requests_per_minute=parent.requests_per_minute,
                tokens_per_minute=parent.tokens_per_minute,
                expires_at=parent.expires_at,
                parent_id=parent.id,
            )

    def find(self, secret: str) -> Key | None:
        """Return the valid key with this secret, or None."""
        wanted = digest(secret)
        now = time.monotonic()
        cached = self._cache.get(wanted)
        if cached is None or cached[0] < now:
            revocations = self._revocations
            cached = (now + CACHE_SECONDS, self._read(wanted))
            with self._lock:
                if len(self._cache) >= _MOST_CACHED:
                    self._cache.clear()
                # A key that was revoked since it was read must not be kept as valid.
                if revocations == self._revocations:
                    self._cache[wanted] = cached
        key = cached[1]
        if key is None or not key.valid:
            return None
        if self._used.get(key.id, 0.0) < now - USED_EVERY_SECONDS:
            self._used[key.id] = now
            self._touch(key.id)
        return key

    def cached(self, secret: str) -> Key | None:
        """Return the key from the cache, without a query; None if it is not cached."""
        cached = self._cache.get(digest(secret))
        if cached is None or cached[0] < time.monotonic():
            return None
        return cached[1] if cached[1] is not None and cached[1].valid else None

    def by_id(self, key_id: str) -> Key | None:
        """Return the key with this id, valid or not."""
        keys = tables.keys
        with self.store.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.id == key_id)).one_or_none()
            return None if row is None else _with_limits(connection, _key(row))

    def page(
        self, team_id: str, limit: int | None, offset: int, *where: sa.ColumnElement[bool]
    ) -> tuple[list[Key], int]:
        """Return a page of a team's keys that meet conditions, newest first, including revoked and expired ones; and their number."""
        keys = tables.keys
        query = sa.select(keys).where(keys.c.team_id == team_id, *where)
        query = query.order_by(keys.c.created_at.desc(), keys.c.id)
        rows, total = self.store.page(query, limit, offset)
        return [_key(row) for row in rows], total

    def count(self, team_id: str, *where: sa.ColumnElement[bool]) -> int:
        """Return the number of a team's keys that meet conditions."""
        keys = tables.keys
        query = sa.select(sa.func.count()).where(keys.c.team_id == team_id, *where)
        return int(self.store.value(query))

    def matching(self, team_id: str, reference: str, *where: sa.ColumnElement[bool]) -> list[Key]:
        """Return the keys without a revocation that have this id or name; if there is none, those whose id begins with it."""
        keys, wanted = tables.keys, plain(reference)
        unrevoked = (keys.c.revoked_at.is_(None), *where)
        named = sa.or_(keys.c.id == wanted, keys.c.name.in_((wanted, reference)))
        exact, _ = self.page(team_id, MOST_MATCHING, 0, named, *unrevoked)
        if exact or len(wanted) < 4:
            return exact
        begins = keys.c.id.startswith(wanted, autoescape=True)
        return self.page(team_id, MOST_MATCHING, 0, begins, *unrevoked)[0]

    def revoke(self, team_id: str, reference: str) -> Key:
        """Revoke a key by id, start of an id, or name; effective immediately in this process.
        Keys of logins that it confirmed, and those that it made if it has limits, are revoked as well. Raises `NotFoundError` unless exactly one key matches.
        """
        matching = self.matching(team_id, reference)
        if len(matching) != 1:
            raise NotFoundError(
                f"There is no key {reference!r}; hud keys list names them."
                if not matching
                else f"Several keys are called {reference!r}; give the id."
            )
        keys = tables.keys
        with self.store.begin() as connection:
            wave = [matching[0].id]
            while wave:
                connection.execute(
                    sa.update(keys)
                    .where(keys.c.id.in_(wave), keys.c.revoked_at.is_(None))
                    .values(revoked_at=datetime.now(UTC))
                )
                children = sa.select(keys.c.id).where(
                    keys.c.parent_id.in_(wave), keys.c.revoked_at.is_(None)
                )
                wave = list(connection.execute(children).scalars())
        with self._lock:
            self._revocations += 1
            self._cache.clear()
        with self.store.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.id == matching[0].id)).one()
        return _key(row)

    def any(self) -> bool:
        """Return True if there is a valid key."""
        return (
            self.store.row(sa.select(tables.keys.c.id).where(is_valid_key()).limit(1)) is not None
        )

    def _read(self, wanted: str) -> Key | None:
        keys = tables.keys
        with self.store.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.digest == wanted)).one_or_none()
            # The index compares digests of the request's secret, so its timing reveals nothing about the stored one; the
            # last comparison takes constant time.
            if row is None or not hmac.compare_digest(row.digest, wanted):
                return None
            return _with_limits(connection, _key(row))

    def _touch(self, key_id: str) -> None:
        used = sa.update(tables.keys).where(tables.keys.c.id == key_id)
        self.store.write(used.values(last_used_at=datetime.now(UTC)))


def digest(secret: str) -> str:
    """Return the stored digest of a secret. Secrets are 256 random bits: a slow hash would add no protection."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _insert(connection: sa.Connection, **values: Any) -> tuple[Key, str]:
    secret = PREFIX + secrets.token_urlsafe(32)
    row = {
        "id": new_id(),
        "start": secret[: len(PREFIX) + 6],
        "created_at": datetime.now(UTC),
        "last_used_at": None,
        "revoked_at": None,
        **values,
    }
    stored = {**row, "scopes": list(values["scopes"]), "digest": digest(secret)}
    connection.execute(sa.insert(tables.keys).values(**stored))
    return _with_limits(connection, Key(**row)), secret


def _with_limits(connection: sa.Connection, key: Key) -> Key:
    """Return a key with the limits of its parents."""
    keys = tables.keys
    shared: list[KeyLimits] = []
    above = key.parent_id
    while above is not None:
        columns = (keys.c.id, keys.c.requests_per_minute, keys.c.tokens_per_minute)
        query = sa.select(*columns, keys.c.parent_id).where(keys.c.id == above)
        *limits, above = connection.execute(query).one()
        parent = KeyLimits(*limits)
        if parent[1:] != (None, None):
            shared.append(parent)
    return replace(key, shared_limits=tuple(shared))


_Bound = TypeVar("_Bound", int, datetime)


def _within(what: str, bound: _Bound | None, most: _Bound | None) -> _Bound | None:
    """Return a limit of a new key. Raises `PlatformError` 403 if it exceeds its maker's."""
    if most is None or bound is None:
        return bound if most is None else most
    if bound > most:
        raise PlatformError(
            f"A new key cannot exceed your own key's limits: {what} {most} at most.", 403
        )
    return bound


def _key(row: sa.Row[Any]) -> Key:
    values = {name: value for name, value in row._mapping.items() if name != "digest"}
    return Key(**{**values, "scopes": tuple(values["scopes"])})
