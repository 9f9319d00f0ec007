"""Paths of requests by what they are for, and the identities that may ask for some paths alone."""

from __future__ import annotations

import functools

from hud.inference.dialects.registry import dialects
from hud.platform.access.identity import Identity

_FLEET = "/v2/fleet/"


def refusal(who: Identity, path: str) -> str | None:
    """Return why an identity that is bound to some paths may not ask for this one; None where it may."""
    if who.worker and not path.startswith(_FLEET):
        return "A pass opens the fleet's routes alone (/v2/fleet/); for anything else use a key."
    # Narrower than `is_inference`: a model's name may hold a colon, and its head is no inference.
    if who.inference_only and not path.startswith(_prefixes()) and not path.endswith(_methods()):
        return "The pass of a rollout opens inference alone."
    return None


def is_inference(path: str) -> bool:
    """True for paths of the gateway, which reads JSON itself and answers in the dialect of its caller."""
    return path.startswith(_prefixes()) or ("/models/" in path and ":" in path)


@functools.cache
def _prefixes() -> tuple[str, ...]:
    return tuple(prefix for dialect in dialects().values() for prefix in dialect.prefixes)


@functools.cache
def _methods() -> tuple[str, ...]:
    return tuple(method for dialect in dialects().values() for method in dialect.methods)
