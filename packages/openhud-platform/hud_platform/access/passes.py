"""Passes: signed, short-lived credentials of workers and of programs that play a run; not stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from hud import exact_json
from hud.durable_files import PRIVATE, read_regular, refuse_open, write_first
from hud.errors import StoreError
from hud_platform.access.identity import Identity, KeyLimits
from hud_platform.access.run_grant import RunGrant
from hud_platform.store.clock import steady_time

PREFIX = "hudpass_"
KEY_BYTES = 32
"""Size of the signing key."""
FEWEST_VALUES = 12
"""Different bytes of a random key: fewer have a probability below 1e-17."""


class Passes:
    """Signs and verifies the passes of one `HUD_HOME`, which holds the signing key, readable by the server only."""

    def __init__(self, home: Path) -> None:
        """Raises `StoreError` for a damaged signing key; a missing one is written at the first signature."""
        self._path = home / "signing.key"
        self._key = self._read_key()

    def make(self, who: Identity, seconds: float) -> str:
        """Return a pass with the permissions of `who`, valid for `seconds`."""
        content = {
            **vars(who),
            "scopes": sorted(who.scopes),
            "shared_limits": [list(limits) for limits in who.shared_limits],
            "run": None if who.run is None else who.run.to_dict(),
            "until": steady_time() + seconds,
        }
        body = base64.urlsafe_b64encode(exact_json.dumps(content)).decode().rstrip("=")
        return f"{PREFIX}{body}.{self._sign_pass(body)}"

    def read(self, text: str) -> Identity | None:
        """Return the identity of a pass; None for an invalid or expired one, and for one of another release."""
        body, _, signature = text.removeprefix(PREFIX).partition(".")
        # As bytes: `compare_digest` accepts only ASCII text.
        right = self._sign_pass(body).encode()
        if not hmac.compare_digest(right, signature.encode("utf-8", "replace")):
            return None
        content = exact_json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if content.pop("until") < steady_time():
            return None
        try:
            run, limits = content["run"], content["shared_limits"]
            content["run"] = None if run is None else RunGrant.from_dict(run)
            content["shared_limits"] = tuple(KeyLimits(*level) for level in limits)
            return Identity(**{**content, "scopes": frozenset(content["scopes"])})
        except (KeyError, TypeError):  # It has other fields; its holder asks for a new one.
            return None

    def sign(self, text: str) -> str:
        """Return the signature of a text."""
        return hmac.new(
            self._signing_key(), text.encode("utf-8", "replace"), hashlib.sha256
        ).hexdigest()

    def _sign_pass(self, body: str) -> str:
        # No other text that this key signs begins so: what is signed for a link is no pass.
        return self.sign(f"{PREFIX}{body}")

    def _signing_key(self) -> bytes:
        if self._key is None:
            write_first(self._path, secrets.token_bytes(KEY_BYTES), PRIVATE)
            self._key = self._read_key()
            assert self._key is not None
        return self._key

    def _read_key(self) -> bytes | None:
        key = read_regular(self._path)
        if key is None:
            return None
        if len(key) != KEY_BYTES or len(set(key)) < FEWEST_VALUES:
            # A part of a key, an empty one, or the zeros that a crash leaves in some file systems can be guessed: passes
            # could be forged.
            has = f"{len(key)} bytes, not {KEY_BYTES}"
            if len(key) == KEY_BYTES:
                has = "few different bytes" if any(key) else "zeros alone"
            raise StoreError(
                f"{self._path} is damaged: it has {has}. Restore it from a backup, or remove it: "
                "then a new one is written, and workers must join with new passes."
            )
        refuse_open(self._path)
        return key
