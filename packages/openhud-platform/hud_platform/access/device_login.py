"""Device login (RFC 8628): the device shows a code, a user confirms it with a key, and the device receives its own key."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud_platform.access.keys import Key, Keys, digest
from hud_platform.access.limits import TooManyRequests
from hud_platform.store import Store, tables

EXPIRES_SECONDS = 600
INTERVAL_SECONDS = 5
MOST_OPEN = 1_000
"""Maximum number of open logins."""
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Alphabet of codes: no vowels, to avoid words, and no characters that look alike."""

Refusal = Literal["authorization_pending", "slow_down", "access_denied", "expired_token"]


@dataclass(frozen=True)
class Begun:
    """Codes of an open login: the device polls with `device_code` and displays `user_code`."""

    device_code: str
    user_code: str


class DeviceLogins:
    """Open logins."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def begin(self, client_name: str) -> Begun:
        """Start a login. Raises `TooManyRequests` beyond `MOST_OPEN` open logins."""
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        begun = Begun(secrets.token_urlsafe(32), f"{letters[:4]}-{letters[4:]}")
        now = self.store.clock.now()
        logins = tables.device_logins
        with self.store.begin() as connection:
            connection.execute(sa.delete(logins).where(logins.c.expires_at < now))
            open_now = connection.execute(
                sa.select(sa.func.count()).select_from(logins)
            ).scalar_one()
            if open_now >= MOST_OPEN:
                raise TooManyRequests(
                    "Many logins are open already. Wait, or make a key: hud keys create NAME",
                    EXPIRES_SECONDS / 10,
                )
            connection.execute(
                sa.insert(logins).values(
                    digest=digest(begun.device_code),
                    user_code=begun.user_code,
                    client_name=client_name[:200],
                    status="pending",
                    created_at=now,
                    expires_at=now + timedelta(seconds=EXPIRES_SECONDS),
                )
            )
        return begun

    def client_name(self, user_code: str) -> str:
        """Return the device name of a code. Raises `NotFoundError` for an unknown, used or expired code."""
        logins = tables.device_logins
        row = self.store.row(sa.select(logins).where(logins.c.user_code == _code(user_code)))
        if row is None or row.status != "pending" or row.expires_at < self.store.clock.now():
            raise NotFoundError("This code is unknown, used or expired; start the login again.")
        return str(row.client_name)

    def decide(self, user_code: str, key: Key, *, allow: bool) -> None:
        """Confirm or refuse a login, as the holder of `key`."""
        self.client_name(user_code)
        logins = tables.device_logins
        self.store.write(
            sa.update(logins)
            .where(logins.c.user_code == _code(user_code), logins.c.status == "pending")
            .values(status="confirmed" if allow else "denied", key_id=key.id)
        )

    def collect(self, device_code: str) -> tuple[Key, str] | Refusal:
        """Return a new key and its secret, once, after the login was confirmed; otherwise the reason."""
        logins = tables.device_logins
        now = self.store.clock.now()
        own_login = logins.c.digest == digest(device_code)
        with self.store.begin() as connection:
            row = connection.execute(sa.select(logins).where(own_login)).one_or_none()
            if row is None or row.expires_at < now:
                return "expired_token"
            if row.status == "denied":
                return "access_denied"
            if row.status == "pending":
                fast = row.polled_at is not None and now - row.polled_at < timedelta(
                    seconds=INTERVAL_SECONDS - 1
                )
                connection.execute(sa.update(logins).where(own_login).values(polled_at=now))
                return "slow_down" if fast else "authorization_pending"
            # The row is deleted so that the key is issued once.
            gone = connection.execute(sa.delete(logins).where(own_login)).rowcount
        if gone != 1:
            return "access_denied"
        return self.keys.mint_like(row.key_id, f"login of {row.client_name}") or "access_denied"


def _code(user_code: str) -> str:
    """Return a typed code in its stored form."""
    letters = "".join(letter for letter in user_code.upper() if letter.isalpha())
    return f"{letters[:4]}-{letters[4:]}"
