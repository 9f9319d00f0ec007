"""Signed links: URLs that need no key, for one purpose and one subject, for a time and while the key behind them is valid."""

from __future__ import annotations

import base64
import hmac

from hud import exact_json
from hud.errors import NotFoundError, PlatformError
from hud_platform.access.identity import Identity
from hud_platform.access.keys import Keys
from hud_platform.access.passes import Passes
from hud_platform.store.clock import steady_time


class SignedLinks:
    """Makes and verifies the tokens of signed links."""

    def __init__(self, passes: Passes, keys: Keys) -> None:
        self._passes = passes
        self._keys = keys

    def make(self, purpose: str, subject: str, who: Identity, until: float) -> str:
        """Return a token for a URL that is valid until a date of `steady_time`."""
        content = exact_json.dumps([subject, until, who.key_id])
        body = base64.urlsafe_b64encode(content).decode().rstrip("=")
        return f"{body}.{self._sign(purpose, body)}"

    def subject(self, purpose: str, token: str) -> str:
        """Return the subject of a token. Blocks. Raises `NotFoundError` for one of another purpose or server, `PlatformError` 403 for one
        that is valid no more.
        """
        body, _, signature = token.partition(".")
        right = self._sign(purpose, body).encode()
        if not hmac.compare_digest(right, signature.encode("utf-8", "replace")):
            raise NotFoundError("This URL is not one of this server's.")
        subject, until, key_id = exact_json.loads(
            base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        )
        if until < steady_time():
            raise PlatformError("This URL has expired; ask for a new one.", 403)
        key = None if key_id is None else self._keys.by_id(key_id)
        if key_id is not None and (key is None or not key.valid):
            raise PlatformError("The key that asked for this URL is expired or revoked.", 403)
        return str(subject)

    def _sign(self, purpose: str, body: str) -> str:
        # The purpose is signed with it: a link of one kind is none of another, and no pass.
        return self._passes.sign(f"{purpose}:{body}")
