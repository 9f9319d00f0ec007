"""Routes of inference, in every dialect, each with and without the path prefixes of its clients.

POST /chat/completions  /completions  /responses           GET, DELETE /responses/{id}       OpenAI
     /responses/input_tokens  /responses/compact
POST /messages  /messages/count_tokens                                                       Anthropic
POST /v1beta/models/{model}:generateContent | :streamGenerateContent | :countTokens          Gemini
GET  /models  /models/{model}                                                                in the client's dialect
     everything else: an error sentence in the client's dialect
     They are plain ASGI: a provider's bytes are forwarded without the overhead of a framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from hud.platform.gateway.exchange import Exchange
from hud.platform.gateway.missing_endpoints import COMPACT, refuse_method

if TYPE_CHECKING:
    from hud.platform.gateway.gateway import Gateway

Handler = Callable[["Gateway", Exchange], Awaitable[None]]

router = APIRouter(tags=["inference"])


class GatewayRoute(APIRoute):
    """Route that is in the OpenAPI description, but served without the framework."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        methods = self.methods or set()
        if scope["method"] not in methods:
            await refuse_method(exchange, ", ".join(sorted(methods)))
            return
        described = self.endpoint
        assert isinstance(described, Described)
        await described.handler(scope["app"].state.parts.gateway, exchange)


class Described:
    """Handler of a described route: its signature has the path parameters and no body."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.__doc__ = handler.__doc__
        self.__name__ = handler.__name__

    def __call__(self) -> dict[str, Any]:
        raise AssertionError("Served by the handler.")


def route(
    *paths: str, method: str = "POST", needed: tuple[str, ...] = ()
) -> Callable[[Handler], Handler]:
    """Serve paths with a handler; the last one, with `/v1`, is in the OpenAPI description."""

    def serve(handler: Handler) -> Handler:
        for path in paths:
            name = f"{handler.__name__}_{path.strip('/').replace('/', '_').replace(':path', '')}"
            router.routes.append(
                GatewayRoute(
                    path,
                    Described(handler),
                    methods=[method],
                    name=handler.__name__,
                    operation_id=name,
                    summary=handler.__name__.replace("_", " "),
                    description=handler.__doc__,
                    include_in_schema=path == paths[-1],
                    openapi_extra=_described(path, needed if method == "POST" else None),
                    tags=["inference"],
                )
            )
        return handler

    return serve


def _described(path: str, needed: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the OpenAPI description of a path's parameters and of the body's required fields."""
    names = [part[1:-1].removesuffix(":path") for part in path.split("/") if part.startswith("{")]
    operation: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    }
    if needed is not None:
        body = {"type": "object", "required": list(needed), "additionalProperties": True}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation


@route("/chat/completions", "/v1/chat/completions", needed=("model", "messages"))
async def chat_completions(gateway: Gateway, exchange: Exchange) -> None:
    """OpenAI's chat completions, with `return_token_ids` and the other fields for training policies."""
    await gateway.serve(exchange, gateway.dialects.chat, "chat/completions")


@route("/messages", "/v1/messages", needed=("model", "messages", "max_tokens"))
async def messages(gateway: Gateway, exchange: Exchange) -> None:
    """Anthropic's messages."""
    await gateway.serve(exchange, gateway.dialects.messages, "messages")


@route("/messages/count_tokens", "/v1/messages/count_tokens", needed=("model", "messages"))
async def count_tokens(gateway: Gateway, exchange: Exchange) -> None:
    """Anthropic's count of a prompt's tokens."""
    await gateway.serve(exchange, gateway.dialects.messages, "messages/count_tokens", count=True)


@route("/responses", "/v1/responses", needed=("model", "input"))
async def responses(gateway: Gateway, exchange: Exchange) -> None:
    """OpenAI's responses; they are stored for `previous_response_id` unless `store` is false."""
    await gateway.serve(exchange, gateway.dialects.responses, "responses")


@route("/responses/input_tokens", "/v1/responses/input_tokens", needed=("model", "input"))
async def count_input_tokens(gateway: Gateway, exchange: Exchange) -> None:
    """OpenAI's count of a prompt's tokens."""
    dialect = gateway.dialects.responses
    await gateway.serve(exchange, dialect, "responses/input_tokens", count=True)


@route("/responses/compact", "/v1/responses/compact", needed=("model",))
async def compact(gateway: Gateway, exchange: Exchange) -> None:
    """OpenAI's compaction of a conversation, by providers that have it; this server's models refuse it."""
    await gateway.serve(exchange, gateway.dialects.responses, COMPACT)


@route("/responses/{id}", "/v1/responses/{id}", method="GET")
async def stored_response(gateway: Gateway, exchange: Exchange) -> None:
    """A stored response."""
    await gateway.stored(exchange, exchange.scope["path_params"]["id"])


@route("/responses/{id}", "/v1/responses/{id}", method="DELETE")
async def forget_response(gateway: Gateway, exchange: Exchange) -> None:
    """Delete a stored response."""
    await gateway.forget(exchange, exchange.scope["path_params"]["id"])


@route("/completions", "/v1/completions", needed=("model", "prompt"))
async def completions(gateway: Gateway, exchange: Exchange) -> None:
    """OpenAI's older completions: text is continued without a chat format."""
    await gateway.serve(exchange, gateway.dialects.completions, "completions")


@route(
    "/models/{call:path}",
    "/v1/models/{call:path}",
    "/v1alpha/models/{call:path}",
    "/v1beta/models/{call:path}",
)
async def generate_content(gateway: Gateway, exchange: Exchange) -> None:
    """Gemini's methods: `{model}:generateContent`, `:streamGenerateContent` and `:countTokens`."""
    name, _, action = exchange.scope["path_params"]["call"].rpartition(":")
    await gateway.gemini(exchange, name, action)


@route("/models", "/v1/models", method="GET")
async def list_models(gateway: Gateway, exchange: Exchange) -> None:
    """Every model of the team, in the client's dialect."""
    await gateway.list_models(exchange, None, gemini=False)


@route("/models/{model:path}", "/v1/models/{model:path}", method="GET")
async def one_model(gateway: Gateway, exchange: Exchange) -> None:
    """One model."""
    await gateway.list_models(exchange, exchange.scope["path_params"]["model"], gemini=False)


@route("/v1alpha/models", "/v1beta/models", method="GET")
async def list_gemini_models(gateway: Gateway, exchange: Exchange) -> None:
    """Every model of the team, in Gemini's dialect."""
    await gateway.list_models(exchange, None, gemini=True)


@route("/v1alpha/models/{model:path}", "/v1beta/models/{model:path}", method="GET")
async def one_gemini_model(gateway: Gateway, exchange: Exchange) -> None:
    """One model, in Gemini's dialect."""
    await gateway.list_models(exchange, exchange.scope["path_params"]["model"], gemini=True)
