"""Requests to providers in another dialect than the client's, and the events in their streams."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp

from hud import exact_json
from hud.errors import UsageError
from hud.inference.dialects.codec import StreamedRequest, StreamReader
from hud.inference.dialects.events import Event
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import DONE, EventTooLargeError, data_of, is_stream
from hud.inference.retries import (
    AnsweredError,
    BrokenAnswer,
    answered_error,
    error_in,
    http_trouble,
    message_of,
    trouble_of,
)
from hud.outbound import MOST_ANSWER_BYTES, read_start
from hud.trace import begins_turn
from hud_platform.gateway.connections import Connections
from hud_platform.gateway.held_answers import HeldAnswer
from hud_platform.gateway.ledger import LONGEST_ANSWER, Meter
from hud_platform.gateway.passthrough import (
    BYTES_OF_A_TOKEN,
    MOST_ERROR_BYTES,
    PIECE_BYTES,
    check_refusal,
    refuse_encoding,
    unreachable,
)
from hud_platform.gateway.redaction import redacted
from hud_platform.gateway.refusals import UpstreamError
from hud_platform.gateway.usage_reader import check_usage
from hud_platform.models.provider_models import ProviderModel

_TEXTS = ("text", "id", "name")
"""Fields of events that are text."""
_WHOLE = ("application/json", "text/html")
"""Types of responses that are no stream."""
_STATUSES = {"overloaded_error": 529, "rate_limit_error": 429, "invalid_request_error": 400}
"""HTTP status for an error inside a stream, by its type."""
_LONGEST = 2000
"""Maximum length of a provider's error message."""


class UpstreamTurns:
    """Turns of providers' models, in the provider's dialect."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def events(
        self, model: ProviderModel, request: GenerationRequest, meter: Meter, held: HeldAnswer
    ) -> AsyncGenerator[list[Event], None]:
        """Stream the events of a turn.

        Raises `UsageError` for a request that the provider's dialect has no form for, `UpstreamError` with the provider's
        status for an error of the provider, `TooManyRequests` where the team's answers are too large together.
        """
        if request.format is not None and request.format.words:
            raise UsageError(
                f"{request.format.name} is not supported for {model.name!r}: its provider has no such form. Ask for JSON."
            )
        if begins_turn(request.messages) and not model.dialect.continues_turns:
            raise UsageError(
                f"The conversation ends with an assistant message, which the provider of {model.name!r} does not continue: end "
                "it with a user message or the results of tools."
            )
        wire = await _reserved(model, replace(request, stream=True), meter)
        reader = wire.reader()
        body = exact_json.dumps(wire.body)
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
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    raise await _refused(model, response)
                refuse_encoding(model, response)
                async for data in _data(model, response, held):
                    if data.strip() == DONE:
                        if wire.done is not None:
                            reader.read(wire.done)
                        break
                    events = _events(model, reader, data, request.choices)
                    meter.count(reader.usage)
                    held.keep(sum(_size(event, request.stream) for event in events))
                    if events:
                        yield events
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(model, error) from error
        except EventTooLargeError as error:
            raise UpstreamError(f"The provider of {model.name!r}: {error}", 502) from error
        yield _last_events(model, reader)


async def _reserved(
    model: ProviderModel, request: GenerationRequest, meter: Meter
) -> StreamedRequest:
    """Reserve a request's tokens and return its form for the provider, bounded to them if it states no limit.

    Raises `TooManyRequests`.
    """
    codec, sampling = model.dialect.client, request.sampling
    wire = codec.request(model.upstream, request)
    longest = model.dialect.default_tokens or LONGEST_ANSWER
    prompt = len(exact_json.dumps(wire.body)) // BYTES_OF_A_TOKEN
    bound = await meter.reserve(prompt, sampling.max_tokens, longest, request.choices)
    if bound is None:
        return wire
    return codec.request(
        model.upstream, replace(request, sampling=replace(sampling, max_tokens=bound))
    )


def _events(model: ProviderModel, reader: StreamReader, data: bytes, choices: int) -> list[Event]:
    """Return the events in the data of one. Raises `UpstreamError` for errors, and for absent fields or ones of another type."""
    value = _value(model, data)
    check_usage(value, model.dialect.usage_fields)
    try:
        events = reader.read(value)
    except (BrokenAnswer, AnsweredError) as error:
        raise _failure(model, error) from error
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


def _last_events(model: ProviderModel, reader: StreamReader) -> list[Event]:
    """Return the events at the end of a stream. Raises `UpstreamError` for a stream that ended early."""
    try:
        return reader.end()
    except BrokenAnswer as error:
        raise _failure(model, error) from error


def _unreadable(model: ProviderModel) -> UpstreamError:
    return UpstreamError(f"The provider of {model.name!r} sent an unreadable event.", 502)


def _value(model: ProviderModel, data: bytes) -> dict[str, Any]:
    try:
        value = exact_json.loads(data)
    except exact_json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise _unreadable(model)
    error = error_in(value)
    if error is not None:
        raise _failure(model, answered_error(error))
    return value


def _failure(model: ProviderModel, error: Exception) -> UpstreamError:
    """Return the error for a turn that failed after its response had begun."""
    trouble = trouble_of(error)
    assert trouble is not None
    text = redacted(str(error).encode(), model.secrets).decode("utf-8", "replace")
    if isinstance(error, BrokenAnswer):
        text = f"The provider of {model.name!r} {text}."
    kind = error.body["code"] if isinstance(error, AnsweredError) else ""
    status = trouble.status or _STATUSES.get(kind, 502)
    return UpstreamError(text[:_LONGEST], status, too_long=trouble.too_long)


async def _refused(model: ProviderModel, response: aiohttp.ClientResponse) -> UpstreamError:
    """Return the error for a response with an error status."""
    check_refusal(model, response.status)
    body = _body(model, await read_start(response, MOST_ERROR_BYTES))
    trouble = http_trouble(response.status, body, response.headers)
    text = message_of(body) if body else f"The provider of {model.name!r} answered with an error."
    return UpstreamError(text, response.status, trouble.retry_after, too_long=trouble.too_long)


async def _data(
    model: ProviderModel, response: aiohttp.ClientResponse, held: HeldAnswer
) -> AsyncGenerator[bytes, None]:
    """Yield the data of a response's events; a whole answer in place of a stream is one.

    Raises `UpstreamError` for a response that is neither, and for one larger than `MOST_ANSWER_BYTES`: a turn is kept until
    its end.
    """
    if response.content_type not in _WHOLE:
        size = 0
        async for data in data_of(_received(response, held)):
            held.event_ended()
            size += len(data)
            if size > MOST_ANSWER_BYTES:
                most = MOST_ANSWER_BYTES >> 20
                raise UpstreamError(
                    f"The answer of the provider of {model.name!r} is larger than {most} MiB.", 502
                )
            yield data
            # One that sends many at once leaves other requests their turn.
            await asyncio.sleep(0)
        return
    body = b"".join([part async for part in _received(response, held)])
    held.event_ended()
    if is_stream(body):
        async for data in data_of(_pieces(body)):
            yield data
        return
    if not isinstance(_body(model, body), dict):
        shown = message_of(_body(model, body[:MOST_ERROR_BYTES]))[:200]
        raise UpstreamError(
            f"The provider of {model.name!r} answered with something that is no stream: {shown}",
            502,
        )
    yield body


async def _received(response: aiohttp.ClientResponse, held: HeldAnswer) -> AsyncIterator[bytes]:
    """Yield the parts of a body. Raises `aiohttp.ClientPayloadError` for a whole one that is larger than `MOST_ANSWER_BYTES`."""
    async for part in response.content.iter_chunked(PIECE_BYTES):
        held.receive(len(part))
        if held.partial > MOST_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(
                f"The answer is larger than {MOST_ANSWER_BYTES >> 20} MiB."
            )
        yield part


def _size(event: Event, streamed: bool) -> int:
    """Return the bytes that are kept of an event: its texts, and for a whole answer the event itself."""
    texts = [getattr(event, name, "") for name in _TEXTS]
    if streamed:
        return sum(map(len, texts))
    return sys.getsizeof(event) + sum(map(sys.getsizeof, texts))


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _body(model: ProviderModel, data: bytes) -> Any:
    """Return a response's JSON or its text, with the server's key removed."""
    text = redacted(data, model.secrets).decode("utf-8", "replace")
    try:
        return exact_json.loads(text)
    except exact_json.JSONDecodeError:
        return text
