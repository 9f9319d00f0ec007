"""Requests to providers in another dialect than the client's, and the events in their streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import aiohttp

from hud import exact_json
from hud.inference.dialects.anthropic.codec import AnthropicCodec
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.codec import Family, StreamingCodec, StreamReader
from hud.inference.dialects.events import Event
from hud.inference.dialects.gemini.codec import GeminiCodec
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import EventTooLargeError, data_of
from hud.inference.retries import retry_after
from hud.outbound import read_start
from hud.platform.gateway.connections import Connections
from hud.platform.gateway.ledger import Meter
from hud.platform.gateway.passthrough import (
    MOST_ERROR_BYTES,
    check_refusal,
    unreachable,
)
from hud.platform.gateway.providers import ProviderModel
from hud.platform.gateway.redaction import redacted
from hud.platform.gateway.refusals import UpstreamError
from hud.platform.gateway.usage_reader import check_usage

_TEXTS = ("text", "id", "name")
"""Fields of events that are text."""
_CODECS: dict[Family, StreamingCodec] = {
    "openai": ChatCodec(limit="max_completion_tokens"),
    "anthropic": AnthropicCodec(),
    "gemini": GeminiCodec(),
}


class UpstreamTurns:
    """Turns of providers' models, in the provider's dialect."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def events(
        self, model: ProviderModel, request: GenerationRequest, meter: Meter
    ) -> AsyncGenerator[list[Event], None]:
        """Stream the events of a turn. Raises `UpstreamError` with the provider's status for an error of the provider."""
        wire = _CODECS[model.family].request(model.upstream, replace(request, stream=True))
        reader = wire.reader()
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            **wire.headers,
            **model.credentials,
        }
        session = await self.connections.session(model.reach)
        try:
            async with session.post(
                model.endpoint(wire.action),
                data=exact_json.dumps(wire.body),
                headers=headers,
                allow_redirects=False,
            ) as response:
                if response.status >= 300:
                    raise await _refused(model, response)
                async for data in data_of(response.content.iter_any()):
                    if data == b"[DONE]":
                        break
                    events = _events(model, reader, _value(model, data), request.choices)
                    meter.count(reader.usage)
                    if events:
                        yield events
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(model, error) from error
        except EventTooLargeError as error:
            raise UpstreamError(f"The provider of {model.name!r}: {error}", 502) from error
        yield reader.end()


def _events(
    model: ProviderModel, reader: StreamReader, value: dict[str, Any], choices: int
) -> list[Event]:
    """Return the events in a value. Raises `UpstreamError` for fields that are absent or of another type."""
    check_usage(value)
    try:
        events = reader.read(value)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(model) from error
    for event in events:
        for name in _TEXTS:
            if type(getattr(event, name, "")) is not str:
                raise _unreadable(model)
        choice = getattr(event, "choice", 0)
        if type(choice) is not int or not 0 <= choice < choices:
            raise _unreadable(model)
    return events


def _unreadable(model: ProviderModel) -> UpstreamError:
    return UpstreamError(f"The provider of {model.name!r} sent an unreadable event.", 502)


def _value(model: ProviderModel, data: bytes) -> dict[str, Any]:
    try:
        value = exact_json.loads(data)
    except exact_json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise _unreadable(model)
    if value.get("error"):
        raise UpstreamError(_message(model, data), _status(value["error"]))
    return value


async def _refused(model: ProviderModel, response: aiohttp.ClientResponse) -> UpstreamError:
    check_refusal(model, response.status)
    data = await read_start(response, MOST_ERROR_BYTES)
    return UpstreamError(_message(model, data), response.status, retry_after(response.headers))


def _message(model: ProviderModel, data: bytes) -> str:
    """Return a provider's error message with the server's key removed."""
    text = redacted(data, model.secrets).decode("utf-8", "replace")
    try:
        value = exact_json.loads(text)
    except exact_json.JSONDecodeError:
        return text[:500] or f"The provider of {model.name!r} answered with an error."
    found = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return str(found)[:2000]


def _status(error: Any) -> int:
    """Return the HTTP status for an error inside a stream."""
    if isinstance(error, dict):
        if type(error.get("code")) is int and 400 <= error["code"] < 600:
            return int(error["code"])
        kinds = {"overloaded_error": 529, "rate_limit_error": 429, "invalid_request_error": 400}
        return kinds.get(str(error.get("type")), 502)
    return 502
