"""Errors for endpoints that this server does not have, in the error shape of the calling client."""

from __future__ import annotations

from hud import exact_json
from hud.inference.dialects.codec import Refusal
from hud_platform.access.request_dialect import dialect_of
from hud_platform.gateway.exchange import Exchange

_ABSENT = {
    "embeddings": "makes no embeddings. It has generative models only: hud models list",
    "fine_tuning": "has no fine-tuning jobs. Models are trained with hud train, or with hud.TrainingClient",
    "images": "makes no images",
    "audio": "has no audio models",
    "moderations": "has no moderation",
    "batches": "has no batches. Send single requests; many may run concurrently",
    "files": "stores no files. Send their content in the request",
    "cachedContents": "has no caches by name. Prompts with a common prefix share its cache automatically",
    "assistants": "has no assistants. Environments have tools: hud init",
    "vector_stores": "has no vector stores",
    "realtime": "has no realtime sessions. Responses can be streamed",
}
"""Path segments of endpoints in providers' APIs, each with the end of its error sentence."""
_LONGEST = 200
"""Maximum length of an unknown path in an error message."""


async def refuse_path(exchange: Exchange) -> None:
    """Respond with 404 and a sentence about the missing endpoint."""
    path: str = exchange.scope["path"]
    absent = next((part for part in path.split("/") if part in _ABSENT), None)
    sentence = (
        f"This server {_ABSENT[absent]}."
        if absent is not None
        else f"There is no {exchange.scope['method']} {path[:_LONGEST]} here; /docs/routes lists the routes of this server."
    )
    await _refuse(exchange, Refusal(404, sentence))


async def refuse_method(exchange: Exchange, allowed: str) -> None:
    """Respond with 405: the path exists for other methods."""
    path, method = exchange.scope["path"][:_LONGEST], exchange.scope["method"]
    refusal = Refusal(405, f"{path} takes {allowed}, not {method}.")
    await _refuse(exchange, refusal, [(b"allow", allowed.encode())])


async def _refuse(
    exchange: Exchange, refusal: Refusal, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = exact_json.dumps(dialect_of(exchange.scope).codec.error(refusal))
    await exchange.answer(refusal.status, body, headers)
