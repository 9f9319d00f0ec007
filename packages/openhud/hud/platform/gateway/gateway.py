"""The gateway of one platform: resolves the model, forwards the request, writes the response, and records usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.errors import NotFoundError, UsageError
from hud.inference.dialects.anthropic.codec import AnthropicCodec
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.chat_completions.completions import CompletionsCodec
from hud.inference.dialects.codec import ServerCodec, StreamWriter
from hud.inference.dialects.events import Event, turns_of
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.gemini.codec import GeminiCodec
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.responses.codec import ResponsesCodec
from hud.inference.dialects.responses.conversation import read_items
from hud.inference.dialects.responses.stream import ResponseWriter
from hud.platform.access.identity import Identity, Scope
from hud.platform.access.limits import TokenBudget
from hud.platform.access.request_dialect import dialect_of
from hud.platform.gateway.catalogue import Catalogue, Target
from hud.platform.gateway.connections import Connections
from hud.platform.gateway.exchange import ClientGoneError, Exchange
from hud.platform.gateway.ledger import Ledger, Meter
from hud.platform.gateway.listing import ModelLists
from hud.platform.gateway.local import LocalModel, LocalTurns, prompts_of
from hud.platform.gateway.missing_endpoints import COMPACT
from hud.platform.gateway.pacing import Pacing
from hud.platform.gateway.passthrough import PassThrough, reserve
from hud.platform.gateway.providers import ProviderModel
from hud.platform.gateway.refusals import refusal_of
from hud.platform.gateway.stored_responses import StoredResponses
from hud.platform.gateway.upstream import UpstreamTurns
from hud.trace import plain

if TYPE_CHECKING:
    from hud.platform.access.limits import Limits
    from hud.platform.metrics import Metrics
    from hud.platform.models.registry import Registry
    from hud.platform.serving.token_engine import TokenEngine


@dataclass(frozen=True)
class Dialects:
    """Codecs of the supported dialects."""

    chat: ServerCodec = field(default_factory=ChatCodec)
    completions: ServerCodec = field(default_factory=CompletionsCodec)
    responses: ServerCodec = field(default_factory=ResponsesCodec)
    messages: ServerCodec = field(default_factory=AnthropicCodec)
    gemini: ServerCodec = field(default_factory=GeminiCodec)


CLIENT_GONE = 499
"""HTTP status recorded for a request whose client has disconnected."""


MOST_VALUES = 100_000
"""Objects, lists and texts of a request body."""
MOST_DEPTH = 200
"""Levels of a request body; orjson writes 254."""


class Gateway:
    """Gateway: routes requests to models and providers; holds the state that all requests share."""

    def __init__(
        self,
        registry: Registry,
        engine: Callable[[], TokenEngine],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self.limits = limits
        self.metrics = metrics
        self.catalogue = Catalogue(registry)
        self.ledger = Ledger(registry.store)
        self.responses = StoredResponses(registry.store)
        self.local = LocalTurns(engine, Pacing())
        self.connections = Connections()
        self.passthrough = PassThrough(self.connections)
        self.upstream = UpstreamTurns(self.connections)
        self.dialects = Dialects()
        self.lists = ModelLists(registry, self.catalogue)

    def close(self) -> None:
        """Write pending usage records."""
        self.ledger.flush()

    async def serve(
        self,
        exchange: Exchange,
        dialect: ServerCodec,
        action: str,
        overrides: dict[str, Any] | None = None,
        *,
        count: bool = False,
    ) -> None:
        """Serve a request for a turn or, with `count`, for the number of its prompt's tokens.
        `given`: fields taken from the path, merged into the body.
        """
        started = time.perf_counter()
        who = exchange.who
        meter = Meter(budget=TokenBudget(self.limits, who))
        target: Target | None = None
        name = ""
        try:
            who.require("run")
            raw = await exchange.body()
            body = Fields({**_parse(raw), **(overrides or {})})
            name = body.needed_text("model")
            target = self.catalogue.remembered(who.team_id, name) or await self.catalogue.find(
                who.team_id, name
            )
            async with exchange.attended():
                if isinstance(target, ProviderModel) and target.family == dialect.family:
                    bound = None if count else reserve(meter, action, raw, body.values)
                    await self.passthrough.send(
                        exchange, target, action, raw, body.values, meter, bound
                    )
                elif count:
                    await self._count(exchange, dialect, body, target)
                elif action == COMPACT:
                    raise UsageError(
                        f"{target.name!r} has no compaction: it is OpenAI's, for its own models. Send a shorter conversation."
                    )
                else:
                    await self._answer(exchange, dialect, body, target, who, meter)
        except ClientGoneError:
            exchange.status = CLIENT_GONE
        except Exception as error:
            if isinstance(error, NotFoundError):
                self.catalogue.forget()
            await _refuse(exchange, dialect, error)
        finally:
            self._note(exchange, who, name, target, meter, action, time.perf_counter() - started)

    async def gemini(self, exchange: Exchange, name: str, action: str) -> None:
        """Serve a method of a model under Gemini's path."""
        dialect = self.dialects.gemini
        overrides: dict[str, Any] = {"model": name.removeprefix("models/"), "stream": False}
        match action:
            case "generateContent":
                await self.serve(exchange, dialect, action, overrides)
            case "streamGenerateContent":
                events = b"alt=sse" in exchange.scope["query_string"]
                overrides.update(stream=True, server_sent_events=events)
                await self.serve(exchange, dialect, action, overrides)
            case "countTokens":
                await self.serve(exchange, dialect, action, overrides, count=True)
            case _:
                unknown = NotFoundError(f"There is no method {action!r} of models here.")
                await _refuse(exchange, dialect, unknown)

    async def list_models(self, exchange: Exchange, name: str | None, *, gemini: bool) -> None:
        """Respond with the models of a team, or with one of them."""

        async def read(who: Identity) -> bytes:
            if name is None:
                return exact_json.dumps(await self.lists.all(who.team_id, exchange, gemini=gemini))
            return exact_json.dumps(
                await self.lists.describe(who.team_id, name, exchange, gemini=gemini)
            )

        await self._simply(
            exchange, self.dialects.gemini if gemini else dialect_of(exchange.scope), read
        )

    async def stored(self, exchange: Exchange, identifier: str) -> None:
        """Respond with a stored response."""

        async def read(who: Identity) -> bytes:
            return await asyncio.to_thread(self.responses.body, who.team_id, identifier)

        await self._simply(exchange, self.dialects.responses, read)

    async def forget(self, exchange: Exchange, identifier: str) -> None:
        """Delete a stored response."""

        async def remove(who: Identity) -> bytes:
            await asyncio.to_thread(self.responses.remove, who.team_id, identifier)
            return exact_json.dumps({"id": identifier, "object": "response", "deleted": True})

        await self._simply(exchange, self.dialects.responses, remove, scope="run")

    async def _simply(
        self,
        exchange: Exchange,
        dialect: ServerCodec,
        work: Callable[[Identity], Awaitable[bytes]],
        scope: Scope = "read",
    ) -> None:
        """Serve a request that needs no model."""
        try:
            exchange.who.require(scope)
            await exchange.answer(200, await work(exchange.who))
        except Exception as error:
            await _refuse(exchange, dialect, error)

    async def _count(
        self, exchange: Exchange, dialect: ServerCodec, body: Fields, target: Target
    ) -> None:
        """Respond with the number of a prompt's tokens."""
        if not isinstance(target, LocalModel):
            raise UsageError(
                f"The tokens of {target.name!r} are counted in its provider's own dialect only."
            )
        inner = body.inner("generateContentRequest")
        if inner is not None:
            body = Fields({**inner.values, "model": body.values["model"]})
        request = await self._continued(dialect, dialect.read(body), body, exchange.who)
        prompts = await prompts_of(target, request)
        count = sum(len(prompt.ids) for prompt in prompts)
        counted: dict[str, Any] = {"input_tokens": count}
        if dialect is self.dialects.gemini:
            counted = {"totalTokens": count}
        elif dialect is self.dialects.responses:
            counted["object"] = "response.input_tokens"
        await exchange.answer(200, exact_json.dumps(counted))

    def events(
        self, target: Target, request: GenerationRequest, who: Identity, meter: Meter
    ) -> AsyncGenerator[list[Event], None]:
        """Stream the events of a turn from a model of this server or of a provider."""
        if isinstance(target, LocalModel):
            return self.local.events(target, request, who.key_id or who.team_id, meter)
        return self.upstream.events(target, request, meter)

    async def _answer(
        self,
        exchange: Exchange,
        dialect: ServerCodec,
        body: Fields,
        target: Target,
        who: Identity,
        meter: Meter,
    ) -> None:
        request = dialect.read(body)
        if request.checkpoint:
            target = await self.catalogue.find(who.team_id, request.model, request.checkpoint)
        request = await self._continued(dialect, request, body, who)
        events = self.events(target, request, who, meter)
        if request.stream:
            writer = dialect.writer(body, request, target.name)
            await self._stream(exchange, writer, events, request, who, body)
            return
        async with aclosing(events) as batches:
            streamed = [event async for batch in batches for event in batch]
        answer = dialect.unstreamed(body, request, target.name, turns_of(streamed, request.choices))
        if isinstance(dialect, ResponsesCodec):
            await self._keep(answer, request, who, body)
        await exchange.answer(200, exact_json.dumps(answer))

    async def _stream(
        self,
        exchange: Exchange,
        writer: StreamWriter,
        events: AsyncGenerator[list[Event], None],
        request: GenerationRequest,
        who: Identity,
        body: Fields,
    ) -> None:
        try:
            async with aclosing(events) as batches:
                async for batch in batches:
                    if exchange.status is None:
                        await exchange.begin_events(writer.content_type)
                    data = b"".join([writer.write(event) for event in batch])
                    if data:
                        await exchange.write(data)
            last = writer.end()
            if isinstance(writer, ResponseWriter):
                # Stored before the last event is sent: the client may refer to it immediately afterwards.
                await self._keep(writer.answer, request, who, body)
            await exchange.end(last)
        except Exception as error:
            if exchange.status is None:
                raise
            await exchange.end(writer.fail(refusal_of(error)))

    async def _continued(
        self, dialect: ServerCodec, request: GenerationRequest, body: Fields, who: Identity
    ) -> GenerationRequest:
        """Prepend the conversation of the earlier response that a request continues."""
        if not isinstance(dialect, ResponsesCodec):
            return request
        previous = body.text("previous_response_id")
        if previous is None:
            return request
        before = await asyncio.to_thread(self.responses.conversation, who.team_id, previous)
        system = [message for message in request.messages if message["role"] == "system"]
        new = [message for message in request.messages if message["role"] != "system"]
        return replace(request, messages=[*system, *before, *new])

    async def _keep(
        self, answer: dict[str, Any], request: GenerationRequest, who: Identity, body: Fields
    ) -> None:
        """Store a response, unless the request has `store` false."""
        if body.flag("store") is False:
            return
        spoken = [message for message in request.messages if message["role"] != "system"]
        answered = read_items(Fields({"input": answer["output"]}))
        await asyncio.to_thread(self.responses.keep, who.team_id, answer, [*spoken, *answered])

    def _note(
        self,
        exchange: Exchange,
        who: Identity,
        name: str,
        target: Target | None,
        meter: Meter,
        action: str,
        seconds: float,
    ) -> None:
        """Record a request's usage and charge it to its key."""
        cost = None
        if isinstance(target, ProviderModel):
            cost = target.cost(meter.prompt_tokens, meter.completion_tokens)
        trace = exchange.header(b"trace-id")
        self.ledger.add(
            meter,
            team_id=who.team_id,
            key_id=who.key_id,
            trace_id=plain(trace)[:32] if trace else None,
            route=action,
            model=name if target is None else target.name,
            status=exchange.status or 500,
            seconds=seconds,
            cost_usd=cost,
        )
        if meter.budget is not None:
            meter.budget.settle(meter.charged)
        if target is not None:
            # No names: metrics are public, and a provider's models are whatever callers ask for.
            shown = target.record.id if isinstance(target, LocalModel) else target.family
            tokens = self.metrics.tokens
            tokens.labels(shown, "prompt").inc(meter.prompt_tokens)
            tokens.labels(shown, "completion").inc(meter.completion_tokens)


async def _refuse(exchange: Exchange, dialect: ServerCodec, error: Exception) -> None:
    """Respond with an error in a dialect's error format."""
    if exchange.status is not None:
        raise error  # Aborts the connection, which is the client's only sign that the response is incomplete.
    refusal = refusal_of(error)
    await exchange.answer(refusal.status, exact_json.dumps(dialect.error(refusal)), refusal.headers)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        values = exact_json.loads(raw)
    except exact_json.JSONDecodeError as error:
        raise UsageError(f"The request body is not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise UsageError("The request body must be a JSON object.")
    _refuse_large(values)
    return values


def _refuse_large(body: dict[str, Any]) -> None:
    """Raise `UsageError` for a body of so many values that reading it would hold up other requests, or nested too deeply."""
    level: list[Any] = [body]
    count = 0
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value
        inner = [value for value in inner if isinstance(value, (dict, list, str))]
        count += len(inner)
        if count > MOST_VALUES:
            raise UsageError(
                f"The request body holds more than {MOST_VALUES:,} objects, lists and texts. Send fewer messages or tools."
            )
        level = [value for value in inner if not isinstance(value, str)]
        if not level:
            return
    raise UsageError(f"The request body is nested more than {MOST_DEPTH} levels deep.")
