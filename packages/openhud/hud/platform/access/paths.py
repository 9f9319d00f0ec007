"""Paths of requests by what they are for, and the identities that may ask for some paths alone."""

from __future__ import annotations

from hud.platform.access.identity import Identity

_INFERENCE = (
    "/chat/completions",
    "/completions",
    "/messages",
    "/responses",
    "/embeddings",
    "/v1/chat/",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1beta/",
    "/v1alpha/",
)
"""Paths of the gateway, which reads JSON itself and answers in the dialect of its caller."""
_GEMINI = (":generateContent", ":streamGenerateContent", ":countTokens")
_FLEET = "/v2/fleet/"


def refusal(who: Identity, path: str) -> str | None:
    """Return why an identity that is bound to some paths may not ask for this one; None where it may."""
    if who.worker and not path.startswith(_FLEET):
        return "A pass opens the fleet's routes alone (/v2/fleet/); for anything else use a key."
    # Narrower than `is_inference`: a model's name may hold a colon, and its head is no inference.
    if who.inference_only and not path.startswith(_INFERENCE) and not path.endswith(_GEMINI):
        return "The pass of a rollout opens inference alone."
    return None


def is_inference(path: str) -> bool:
    """True for paths of the gateway."""
    return path.startswith(_INFERENCE) or ("/models/" in path and ":" in path)
