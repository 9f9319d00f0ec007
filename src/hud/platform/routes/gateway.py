"""Routes of inference, in every dialect, each with and without what its clients put before it.

POST /chat/completions  /completions  /responses           GET, DELETE /responses/{id}       OpenAI
POST /messages  /messages/count_tokens                                                       Anthropic
POST /v1beta/models/{model}:generateContent | :streamGenerateContent | :countTokens          Gemini
GET  /models  /models/{model}                                                                each in its own shape

They are plain ASGI: between a provider's bytes and their reader there is no framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.routing import Route

from hud.platform.gateway.exchange import Exchange, Receive, Scope, Send

if TYPE_CHECKING:
    from hud.platform.gateway.gateway import Gateway

Handler = Callable[["Gateway", Exchange], Awaitable[None]]

router = APIRouter()


class Endpoint:
    """One route, as an ASGI application."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway: Gateway = scope["app"].state.platform.gateway
        await self._handler(gateway, Exchange(scope, receive, send))


def route(*paths: str, method: str = "POST") -> Callable[[Handler], Handler]:
    """Serve paths with a handler."""

    def serve(handler: Handler) -> Handler:
        for path in paths:
            router.routes.append(Route(path, Endpoint(handler), methods=[method]))
        return handler

    return serve


@route("/chat/completions", "/v1/chat/completions")
async def chat_completions(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.serve(exchange, gateway.dialects.chat, "chat/completions")


@route("/messages", "/v1/messages")
async def messages(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.serve(exchange, gateway.dialects.messages, "messages")


@route("/messages/count_tokens", "/v1/messages/count_tokens")
async def count_tokens(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.serve(exchange, gateway.dialects.messages, "messages/count_tokens", count=True)


@route("/responses", "/v1/responses")
async def responses(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.serve(exchange, gateway.dialects.responses, "responses")


@route("/responses/{id}", "/v1/responses/{id}", method="GET")
async def stored_response(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.stored(exchange, exchange.scope["path_params"]["id"])


@route("/responses/{id}", "/v1/responses/{id}", method="DELETE")
async def forget_response(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.forget(exchange, exchange.scope["path_params"]["id"])


@route("/completions", "/v1/completions")
async def completions(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.serve(exchange, gateway.dialects.completions, "completions")


@route("/v1beta/models/{call}", "/v1/models/{call}")
async def generate_content(gateway: Gateway, exchange: Exchange) -> None:
    name, _, action = exchange.scope["path_params"]["call"].rpartition(":")
    await gateway.gemini(exchange, name, action)


@route("/models", "/v1/models", method="GET")
async def list_models(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.tell_models(exchange, None, gemini=False)


@route("/models/{model}", "/v1/models/{model}", method="GET")
async def one_model(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.tell_models(exchange, exchange.scope["path_params"]["model"], gemini=False)


@route("/v1beta/models", method="GET")
async def list_gemini_models(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.tell_models(exchange, None, gemini=True)


@route("/v1beta/models/{model}", method="GET")
async def one_gemini_model(gateway: Gateway, exchange: Exchange) -> None:
    await gateway.tell_models(exchange, exchange.scope["path_params"]["model"], gemini=True)
