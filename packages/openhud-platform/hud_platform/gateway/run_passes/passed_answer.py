"""Answers of providers that are passed to a program unchanged, read for the run's steps. They have no samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hud import exact_json
from hud.errors import HudError
from hud.inference.dialects.codec import ClientCodec, Refusal, WireRequest
from hud.inference.dialects.dialect import Dialect, ProviderDialect
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.server_sent_events import events_in, is_stream
from hud.inference.retries import AnsweredError, BrokenAnswer, http_trouble, message_of
from hud.trace import AgentStep, Completion, Usage
from hud_platform.gateway.exchange import Exchange, Observer
from hud_platform.gateway.ledger import Meter
from hud_platform.gateway.run_passes.run_calls import PricedModel, RunCall

_UNREADABLE = (
    *(HudError, BrokenAnswer, AnsweredError),
    *(LookupError, TypeError, ValueError, AttributeError),
)


@dataclass
class PassedAnswer:
    """Answer of one call, recorded before its end is sent."""

    exchange: Exchange
    call: RunCall
    model: PricedModel
    meter: Meter
    wire: WireRequest | None
    """Reader of the answer; None: it is no turn, or the request has parts that this server does not read."""
    parts: list[bytes] = field(default_factory=list)

    @classmethod
    async def observed(
        cls,
        exchange: Exchange,
        dialect: Dialect,
        body: Fields,
        model: PricedModel,
        meter: Meter,
        call: RunCall,
    ) -> Observer:
        """Return the observer of the answer to a request."""
        wire = None
        codec = _reader(dialect)
        try:
            request = dialect.codec.read(body)
            request = await call.note(request)
            if codec is not None and not call.forwarded:
                wire = codec.request(model.name, request)
        except _UNREADABLE:
            pass
        return cls(exchange, call, model, meter, wire).take

    async def take(self, data: bytes, last: bool) -> None:
        """Take a part of the answer; record the call at its end."""
        self.parts.append(data)
        if not last:
            return
        answer, status = b"".join(self.parts), self.exchange.status or 500
        if status >= 300:
            body = _body(answer)
            too_long = http_trouble(status, body, {}).too_long
            await self.call.refused_as(Refusal(status, message_of(body), too_long=too_long))
        else:
            await self.call.answered_with([self._step(answer)])

    def _step(self, answer: bytes) -> AgentStep:
        try:
            turn = self._completion(answer)
        except _UNREADABLE:
            turn = None
        if turn is None:
            extra = {**self.call.extra(0), "unread": True}
            return AgentStep(
                model=self.model.name,
                usage=self._priced(Usage()),
                started_at=self.call.started,
                extra=extra,
            )
        return AgentStep(
            content=turn.content,
            reasoning=turn.reasoning,
            tool_calls=turn.tool_calls,
            finish_reason=turn.finish_reason,
            refusal=turn.refusal,
            model=self.model.name,
            usage=self._priced(turn.usage),
            citations=turn.citations,
            started_at=self.call.started,
            extra=self.call.extra(0),
        )

    def _priced(self, usage: Usage) -> Usage:
        """Return an answer's usage with its cost; where none was read, the counts of its meter."""
        prompt, sampled = usage.prompt_tokens, usage.completion_tokens
        if not sampled:
            prompt, sampled = self.meter.estimated(self.call.prompt_tokens)
        cost = self.model.cost(prompt, sampled)
        counts = {"prompt_tokens": prompt, "completion_tokens": sampled}
        return usage.model_copy(
            update={**counts, "cost_usd": usage.cost_usd if cost is None else cost}
        )

    def _completion(self, answer: bytes) -> Completion | None:
        if self.wire is None:
            return None
        if is_stream(answer):
            return self.wire.completion(self.wire.joined(events_in(answer, self.wire.done)))
        value: dict[str, Any] = exact_json.loads(answer)
        return self.wire.completion(value)


def _reader(dialect: Dialect) -> ClientCodec | None:
    if dialect.reader is not None:
        return dialect.reader
    return dialect.client if isinstance(dialect, ProviderDialect) else None


def _body(answer: bytes) -> Any:
    try:
        return exact_json.loads(answer)
    except exact_json.JSONDecodeError:
        return answer.decode("utf-8", "replace")
