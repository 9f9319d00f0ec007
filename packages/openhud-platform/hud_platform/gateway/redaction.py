"""Removal of the server's keys from what providers answer, also where a key is split between two chunks.

A safety net for providers that repeat a key in an error: a provider that is given a key can send it on in any other form.
"""

from __future__ import annotations

from collections.abc import Sequence

REDACTED = b"[redacted]"


def redacted(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """Return a whole answer without the secrets."""
    for secret in secrets:
        if secret in data:
            data = data.replace(secret, REDACTED)
    return data


class Redaction:
    """Redaction of a stream. Holds back an end that may be the beginning of a secret, and nothing else."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = secrets
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """Return what of the stream may be passed on."""
        data = redacted(self._held + chunk, self._secrets)
        held = max((_overlap(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, secret: bytes) -> int:
    """Return the length of the longest end of `data` with which `secret` begins."""
    first = secret[:1]
    at = data.find(first, max(0, len(data) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(data[at:]):
            return len(data) - at
        at = data.find(first, at + 1)
    return 0
