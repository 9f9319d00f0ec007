"""Errors for endpoints that this server does not have, in the error shape of the calling client."""

from __future__ import annotations

import orjson

from hud.inference.dialects.anthropic.codec import AnthropicCodec
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.codec import Refusal, ServerCodec
from hud.inference.dialects.gemini.codec import GeminiCodec
from hud.platform.gateway.exchange import Exchange

_ABSENT = {
    "embeddings": "makes no embeddings. It has generative models only: hud models list",
    "fine_tuning": "has no fine-tuning jobs. Models are trained with hud train, or with hud.TrainingClient",
    "images": "makes no images",
    "audio": "neither hears nor speaks",
    "moderations": "has no moderation",
    "batches": "has no batches. Send the requests one by one; many may be on their way at once",
    "files": "keeps no files. Send their content in the request",
    "cachedContents": "keeps no caches by name. Prompts that begin alike share theirs by themselves",
    "assistants": "has no assistants. Environments have tools: hud init",
    "vector_stores": "has no vector stores",
    "realtime": "has no realtime sessions. Answers can be streamed",
}
"""Parts of paths that providers' clients ask for, and what is to be said of each."""
_LONGEST = 200
"""Characters of an unknown path that are repeated."""


def dialect_of(exchange: Exchange) -> ServerCodec:
    """Return the dialect of a request, by its headers or its path; OpenAI's where nothing tells."""
    path: str = exchange.scope["path"]
    if exchange.header(b"x-goog-api-key") or path.startswith(("/v1beta/", "/v1alpha/")):
        return GeminiCodec()
    if exchange.header(b"anthropic-version") or "messages" in path.split("/"):
        return AnthropicCodec()
    return ChatCodec()


async def tell_absent(exchange: Exchange) -> None:
    """Answer 404, with a sentence about what was asked for."""
    path: str = exchange.scope["path"]
    known = next((part for part in path.split("/") if part in _ABSENT), None)
    sentence = (
        f"This server {_ABSENT[known]}."
        if known is not None
        else f"There is no {exchange.scope['method']} {path[:_LONGEST]} here; /docs lists the routes of this server."
    )
    await _refuse(exchange, Refusal(404, sentence))


async def tell_method(exchange: Exchange, allowed: str) -> None:
    """Answer 405: the path is there, for other methods."""
    path, method = exchange.scope["path"][:_LONGEST], exchange.scope["method"]
    refusal = Refusal(405, f"{path} takes {allowed}, not {method}.")
    await _refuse(exchange, refusal, [(b"allow", allowed.encode())])


async def _refuse(
    exchange: Exchange, refusal: Refusal, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = orjson.dumps(dialect_of(exchange).error(refusal))
    await exchange.answer(refusal.status, body, headers)
