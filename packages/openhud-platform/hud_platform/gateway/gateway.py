"""The gateway of one platform: resolves the model, forwards the request, writes the response, and records usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.errors import HudError, NotFoundError, UsageError
from hud.inference.dialects.codec import StreamWriter
from hud.inference.dialects.dialect import Dialect, DialectRoute, RouteCall
from hud.inference.dialects.events import Event, turns_of
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.trace import plain
from hud_platform.access.identity import Identity, Scope
from hud_platform.access.limits import TokenBudget
from hud_platform.access.request_dialect import dialect_of
from hud_platform.gateway.catalogue import Catalogue, Target
from hud_platform.gateway.connections import Connections
from hud_platform.gateway.exchange import ClientGoneError, Exchange
from hud_platform.gateway.held_answers import HeldAnswer, HeldAnswers
from hud_platform.gateway.ledger import CLIENT_GONE, Ledger, Meter
from hud_platform.gateway.listing import ModelLists
from hud_platform.gateway.local import LocalModel, LocalTurns, prompts_of
from hud_platform.gateway.pacing import Pacing
from hud_platform.gateway.passthrough import BYTES_OF_A_TOKEN, PassThrough, reserve
from hud_platform.gateway.refusals import refusal_of
from hud_platform.gateway.run_passes.passed_answer import PassedAnswer
from hud_platform.gateway.run_passes.run_calls import RunCall, RunCalls
from hud_platform.gateway.sealed_thoughts import SealedThoughts
from hud_platform.gateway.stored_responses import StoredResponses
from hud_platform.gateway.upstream import UpstreamTurns
from hud_platform.models.provider_models import ProviderModel

if TYPE_CHECKING:
    from hud_platform.access.limits import Limits
    from hud_platform.models.registry import Registry
    from hud_platform.process.metrics import Metrics
    from hud_platform.serving.token_engine import TokenEngine


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
        sign: Callable[[str], str],
    ) -> None:
        """`sign` returns this server's signature of a text."""
        self.limits = limits
        self.metrics = metrics
        self.catalogue = Catalogue(registry)
        self.ledger = Ledger(registry.store)
        self.responses = StoredResponses(registry.store)
        self.local = LocalTurns(engine, Pacing())
        self.connections = Connections()
        self.held_answers = HeldAnswers()
        self.passthrough = PassThrough(self.connections)
        self.upstream = UpstreamTurns(self.connections)
        self.lists = ModelLists(registry, self.catalogue)
        self.thoughts = SealedThoughts(sign)
        self.runs = RunCalls(registry.store)

    def close(self) -> None:
        """Write pending usage records."""
        self.ledger.flush()

    async def handle(self, exchange: Exchange, dialect: Dialect, route: DialectRoute) -> None:
        """Serve a request of a dialect's route."""
        parameters = exchange.scope["path_params"]
        call = route.call
        if not isinstance(call, RouteCall):
            try:
                call = call(parameters, exchange.scope["query_string"])
            except HudError as error:
                await _refuse(exchange, dialect, error)
                return
        match call.operation:
            case "models":
                await self._list_models(exchange, None)
            case "model":
                await self._list_models(exchange, parameters["model"])
            case "stored":
                await self._stored(exchange, dialect, parameters["id"])
            case "delete":
                await self._delete(exchange, dialect, parameters["id"])
            case _:
                await self.serve(exchange, dialect, call)

    async def serve(self, exchange: Exchange, dialect: Dialect, call: RouteCall) -> None:
        """Serve a request to a model: for a turn, for the number of its prompt's tokens, or one that is only passed on."""
        started = time.perf_counter()
        who = exchange.who
        meter = Meter(budget=TokenBudget(self.limits, who))
        held = self.held_answers.answer(who.team_id)
        target: Target | None = None
        run_call: RunCall | None = None
        name = ""
        try:
            who.require("run")
            raw = await exchange.body()
            body = Fields({**_parse(raw), **call.fields})
            name = body.needed_text("model")
            if who.run is not None and call.operation in ("turn", "forward"):
                session = exchange.headers(dialect.session_headers)
                run_call = await self.runs.begin(who, body.values, session)
                run_call.forwarded = call.action if call.operation == "forward" else ""
                run_call.prompt_tokens = len(raw) // BYTES_OF_A_TOKEN
            if who.run is not None:
                await self.limits.count(who)
            name = _called_model(who, name)
            target = self.catalogue.remembered(who.team_id, name) or await self.catalogue.find(
                who.team_id, name
            )
            async with exchange.attended():
                passed = await self._passed(
                    exchange, dialect, call, target, raw, body, meter, held, run_call
                )
                if not passed and call.operation == "forward":
                    raise UsageError(f"{target.name!r} {call.refusal}")
                if not passed and call.operation == "count":
                    await self._count(exchange, dialect, body, target)
                elif not passed:
                    await self._answer(exchange, dialect, body, target, who, meter, held, run_call)
        except ClientGoneError:
            exchange.status = CLIENT_GONE
        except asyncio.CancelledError:
            if run_call is None or not run_call.ending:
                raise
            await _refuse(exchange, dialect, run_call.withdrawn())
        except Exception as error:
            if isinstance(error, NotFoundError):
                self.catalogue.forget()
            if run_call is not None:
                await run_call.refused(error)
            await _refuse(exchange, dialect, error)
        finally:
            held.release()
            if run_call is not None:
                await run_call.close(*_so_far(meter, run_call, target))
            self._note(
                exchange, who, name, target, meter, call.action, time.perf_counter() - started
            )
            if meter.budget is not None:
                await meter.budget.settle(meter.charged)

    async def _passed(
        self,
        exchange: Exchange,
        dialect: Dialect,
        call: RouteCall,
        target: Target,
        raw: bytes,
        body: Fields,
        meter: Meter,
        held: HeldAnswer,
        run_call: RunCall | None,
    ) -> bool:
        """Pass a request to a provider of its dialect's family; return False for other models, and absent endpoints."""
        if not isinstance(target, ProviderModel) or target.dialect.family != dialect.family:
            return False
        bound = None
        if call.operation != "count":
            bound = await reserve(meter, dialect, call.action, raw, body.values)
        if run_call is not None:
            exchange.observer = await PassedAnswer.observed(
                exchange, dialect, body, target, meter, run_call
            )
            stated = dialect.stated_bounds(call.action, body.values)
            bounds = [bound, await run_call.bound_of(stated, target)]
            bound = min((most for most in bounds if most is not None), default=None)
        passed = await self.passthrough.send(
            exchange, dialect, target, call.action, raw, body.values, meter, held, bound
        )
        if not passed:
            exchange.observer = None
            await meter.begin_again()
        return passed

    async def _list_models(self, exchange: Exchange, name: str | None) -> None:
        """Respond with the models of a team, or with one of them, in the client's dialect."""
        dialect = dialect_of(exchange.scope)

        async def read(who: Identity) -> bytes:
            if who.run is not None:
                named = await self.lists.of_run(who.team_id, who.run, name, dialect)
                return exact_json.dumps(named)
            if name is None:
                return exact_json.dumps(await self.lists.all(who.team_id, dialect))
            return exact_json.dumps(await self.lists.describe(who.team_id, name, dialect))

        await self._simply(exchange, dialect, read)

    async def _stored(self, exchange: Exchange, dialect: Dialect, identifier: str) -> None:
        """Respond with a stored response."""

        async def read(who: Identity) -> bytes:
            return await asyncio.to_thread(self.responses.body, owner_of(who), identifier)

        await self._simply(exchange, dialect, read)

    async def _delete(self, exchange: Exchange, dialect: Dialect, identifier: str) -> None:
        """Delete a stored response."""

        async def remove(who: Identity) -> bytes:
            await asyncio.to_thread(self.responses.remove, owner_of(who), identifier)
            return exact_json.dumps(dialect.deleted(identifier))

        await self._simply(exchange, dialect, remove, scope="run")

    async def _simply(
        self,
        exchange: Exchange,
        dialect: Dialect,
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
        self, exchange: Exchange, dialect: Dialect, body: Fields, target: Target
    ) -> None:
        """Respond with the number of a prompt's tokens."""
        if not isinstance(target, LocalModel):
            raise UsageError(
                f"The tokens of {target.name!r} are counted in its provider's own dialect only."
            )
        body = dialect.counted_request(body)
        request = await self._continued(dialect, self._read(dialect, body), body, exchange.who)
        prompts = await prompts_of(target, request)
        count = sum(len(prompt.ids) for prompt in prompts)
        await exchange.answer(200, exact_json.dumps(dialect.counted(count)))

    def events(
        self,
        target: Target,
        request: GenerationRequest,
        who: Identity,
        meter: Meter,
        held: HeldAnswer,
    ) -> AsyncGenerator[list[Event], None]:
        """Stream the events of a turn from a model of this server or of a provider."""
        if isinstance(target, LocalModel):
            return self.local.events(target, request, who.key_id or who.team_id, meter)
        return self.upstream.events(target, request, meter, held)

    async def _answer(
        self,
        exchange: Exchange,
        dialect: Dialect,
        body: Fields,
        target: Target,
        who: Identity,
        meter: Meter,
        held: HeldAnswer,
        run_call: RunCall | None,
    ) -> None:
        request = self._read(dialect, body, named=run_call is not None)
        if request.checkpoint and run_call is None:
            target = await self.catalogue.find(who.team_id, request.model, request.checkpoint)
        request = await self._continued(dialect, request, body, who)
        if run_call is None:
            events = self.events(target, request, who, meter, held)
        else:
            local = isinstance(target, LocalModel)
            sampled = await run_call.prepared(request, target, local=local)
            events = self.events(target, sampled, who, meter, held)
            events = run_call.recorded(events, request, target)
        if dialect.seals_thoughts:
            events = self.thoughts.sealing(events, request)
        if request.stream:
            writer = dialect.codec.writer(body, request, target.name)
            await self._stream(exchange, dialect, writer, events, request, who, body)
            return
        async with aclosing(events) as batches:
            streamed = [event async for batch in batches for event in batch]
        turns = turns_of(streamed, request.choices)
        answer = dialect.codec.unstreamed(body, request, target.name, turns)
        await self._store(dialect, answer, request, who, body)
        await exchange.answer(200, exact_json.dumps(answer))

    async def _stream(
        self,
        exchange: Exchange,
        dialect: Dialect,
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
            if writer.answer is not None:
                # Stored before the last event is sent: the client may refer to it immediately afterwards.
                await self._store(dialect, writer.answer, request, who, body)
            await exchange.end(last)
        except Exception as error:
            if exchange.status is None:
                raise
            await exchange.end(writer.fail(refusal_of(error)))

    def _read(self, dialect: Dialect, body: Fields, *, named: bool = False) -> GenerationRequest:
        """Return the request in a body, with the thoughts of its earlier turns and, if `named`, the turns' names."""
        request = dialect.codec.read(body)
        return replace(request, messages=self.thoughts.restored(request.messages, named=named))

    async def _continued(
        self, dialect: Dialect, request: GenerationRequest, body: Fields, who: Identity
    ) -> GenerationRequest:
        """Prepend the conversation of the earlier response that a request continues."""
        previous = dialect.continued(body)
        if previous is None:
            return request
        before = await asyncio.to_thread(self.responses.conversation, owner_of(who), previous)
        system = [message for message in request.messages if message["role"] == "system"]
        new = [message for message in request.messages if message["role"] != "system"]
        return replace(request, messages=[*system, *before, *new])

    async def _store(
        self,
        dialect: Dialect,
        answer: dict[str, Any],
        request: GenerationRequest,
        who: Identity,
        body: Fields,
    ) -> None:
        """Store an answer that later requests can continue."""
        turn = dialect.stored_turn(body, answer)
        if turn is None:
            return
        turn = self.thoughts.restored(turn)
        spoken = [message for message in request.messages if message["role"] != "system"]
        await asyncio.to_thread(self.responses.keep, owner_of(who), answer, [*spoken, *turn])

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
        """Record a request's usage."""
        cost = None
        if isinstance(target, ProviderModel):
            cost = target.cost(meter.prompt_tokens, meter.completion_tokens)
        trace = exchange.header(b"trace-id") if who.run is None else who.run.trace_id
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
        if target is not None:
            # No names: metrics are public, and a provider's models are whatever callers ask for.
            shown = target.record.id if isinstance(target, LocalModel) else target.dialect.family
            tokens = self.metrics.tokens
            tokens.labels(shown, "prompt").inc(meter.prompt_tokens)
            tokens.labels(shown, "completion").inc(meter.completion_tokens)


def _so_far(meter: Meter, call: RunCall, target: Target | None) -> tuple[int, float]:
    """Return the tokens that a call has sampled, estimated where its provider has not said, and its cost in dollars."""
    prompt, sampled = meter.estimated(call.prompt_tokens)
    cost = None if target is None else target.cost(prompt, sampled)
    return sampled, cost or 0.0


def _called_model(who: Identity, name: str) -> str:
    """Return the reference of a request's model: with a run pass, the run's, or its side model."""
    if who.run is None:
        return name
    if who.run.side_model is not None and who.run.is_side_call(name):
        return who.run.side_model
    return who.run.reference


def owner_of(who: Identity) -> str:
    """Return the owner of stored responses: the team, or for a run pass its run alone."""
    return who.team_id if who.run is None else who.run.pass_id


async def _refuse(exchange: Exchange, dialect: Dialect, error: BaseException) -> None:
    """Respond with an error in a dialect's error format."""
    if exchange.status is not None:
        raise error  # Aborts the connection, which is the client's only sign that the response is incomplete.
    refusal = refusal_of(error)
    await exchange.answer(
        refusal.status, exact_json.dumps(dialect.codec.error(refusal)), refusal.headers
    )


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
