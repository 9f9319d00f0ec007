"""Passes: signed, short-lived credentials of the server's own workers; not stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from hud import exact_json
from hud.platform.access.identity import Identity
from hud.platform.store.clock import steady_time

PREFIX = "hudpass_"


class Passes:
    """Signs and verifies the passes of one `HUD_HOME`, which holds the signing key, readable by the server only."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._key: bytes | None = None

    def make(self, who: Identity, seconds: float) -> str:
        """Return a pass with the permissions of `who`, valid for `seconds`."""
        content = {**vars(who), "scopes": sorted(who.scopes), "until": steady_time() + seconds}
        body = base64.urlsafe_b64encode(exact_json.dumps(content)).decode().rstrip("=")
        return f"{PREFIX}{body}.{self.sign(body)}"

    def read(self, text: str) -> Identity | None:
        """Return the identity of a pass; None for an invalid or expired one."""
        body, _, signature = text.removeprefix(PREFIX).partition(".")
        # As bytes: `compare_digest` accepts only ASCII text.
        if not hmac.compare_digest(self.sign(body).encode(), signature.encode("utf-8", "replace")):
            return None
        content = exact_json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if content.pop("until") < steady_time():
            return None
        return Identity(**{**content, "scopes": frozenset(content["scopes"])})

    def sign(self, text: str) -> str:
        """Return the signature of a text."""
        return hmac.new(
            self._signing_key(), text.encode("utf-8", "replace"), hashlib.sha256
        ).hexdigest()

    def _signing_key(self) -> bytes:
        if self._key is None:
            path = self.home / "signing.key"
            if not path.exists():
                _write_once(path, secrets.token_bytes(32))
            self._key = path.read_bytes()
        return self._key


def _write_once(path: Path, content: bytes) -> None:
    """Write a file atomically, unless another process has written it already."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
