"""Paths of requests by what they are for, and the identities that may ask for some paths alone."""

from __future__ import annotations

import functools

from hud.inference.dialects.registry import dialects
from hud_platform.access.identity import RUN_PASS_BOUND, Identity

RUN_PASSES = "/v1/run-passes"
_FLEET = "/v2/fleet/"
_LISTS = ("/models", "/v1/models")
"""Paths of the lists of models, which show a run pass its own model."""


def refusal(who: Identity, path: str) -> str | None:
    """Return why an identity that is bound to some paths may not ask for this one; None where it may."""
    if who.worker and not path.startswith(_FLEET):
        return "A pass opens the fleet's routes alone (/v2/fleet/); for anything else use a key."
    # Narrower than `is_inference`: a model's name may hold a colon, and its head is no inference.
    infers = path.startswith(_prefixes()) or path.endswith(_methods())
    if who.run is not None:
        listed = path.startswith(_LISTS)
        return None if infers or listed else RUN_PASS_BOUND
    if who.inference_only and not infers and not path.startswith(RUN_PASSES):
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
