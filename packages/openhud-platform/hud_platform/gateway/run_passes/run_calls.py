"""Model calls of run passes in progress in this process, each with its number, its outcome and its cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Protocol

import sqlalchemy as sa

from hud.errors import HudError, PlatformError, StoreError
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.dialect import StatedBounds
from hud.inference.dialects.events import Event, Finished, Turn, turns_of
from hud.inference.dialects.request import GenerationRequest
from hud.trace import AgentStep, now, parse_step
from hud.trace.sampled.call_samples import MODEL_CALL, expand_samples
from hud_platform.access.identity import Identity
from hud_platform.access.run_grant import RunGrant
from hud_platform.gateway.ledger import LONGEST_ANSWER
from hud_platform.gateway.refusals import refusal_of
from hud_platform.gateway.run_passes.call_steps import (
    RunConversation,
    agent_step,
    packed_step,
    request_digest,
)
from hud_platform.gateway.run_passes.call_store import (
    CallOutcome,
    CallStatus,
    CallStore,
    Need,
    RunEndedError,
    RunLimitError,
    ended,
)
from hud_platform.gateway.run_passes.outcomes import REWRITES, run_result
from hud_platform.gateway.run_passes.sampling_override import overridden
from hud_platform.gateway.turn_index import UNREAD, without_handles
from hud_platform.store import Store
from hud_platform.store.run_calls import unpacked

WATCH_SECONDS = 1.0
"""Interval of looking for the ends of passes by other servers, and for revoked keys."""
GRACE_SECONDS = 5.0
"""Time that other servers have to cancel the calls of a run that has ended."""
LONGEST_HEADER = 2000
"""Characters of a header of a session that are recorded."""
MOST_CONVERSATIONS = 4096
"""Runs whose conversation is kept in memory; another one is read from the store at its next call."""
MOST_CONVERSATION_BYTES = 256 << 20
"""Size of the conversations that are kept in memory together."""


class PricedModel(Protocol):
    """Model of a call: its name, and the cost of its tokens."""

    @property
    def name(self) -> str: ...

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return a cost in dollars; None for a model without a price."""


class RunCall:
    """A model call of a run in progress: one request of its program."""

    def __init__(self, owner: RunCalls, grant: RunGrant, number: int, name: str) -> None:
        self.grant = grant
        self.number = number
        self.name = name
        """Name of the model in the program's request."""
        self.side = grant.is_side_call(name)
        self.forwarded = ""
        """Endpoint of a call that providers alone have, such as `responses/compact`: a side call, whose tokens count."""
        self.session: dict[str, str] = {}
        """Headers by which the program names the session or the agent of the call."""
        self.ending = False
        """True once the run has ended: the call is being cancelled."""
        self.settled: Future[None] = Future()
        self._owner = owner
        self.prompt_tokens = 0
        """Estimate of the prompt's tokens."""
        self.reserves = False
        """True for a call that has reserved something of its run's limits."""
        self.started = now()
        self._overrides: list[str] = []
        self._last: CallOutcome | None = None
        """Refusal of the call, which may not be in the store yet."""
        self._results: list[dict[str, Any]] = []
        self._read = UNREAD
        self._response: str | None = None
        self._tools = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    async def prepared(
        self, request: GenerationRequest, target: PricedModel, *, local: bool
    ) -> GenerationRequest:
        """Return the request as it is sampled; note what it carries of earlier calls."""
        if not self.side:
            request, self._overrides = overridden(request, self.grant, self.number, local=local)
            request = replace(request, return_token_ids=local)
        request = await self.note(request, restoring=local and not self.side)
        sampling = request.sampling
        most = await self._owner.reserve(self, sampling.max_tokens, request.choices, target)
        return replace(request, sampling=replace(sampling, max_tokens=most))

    async def bound_of(self, stated: StatedBounds, target: PricedModel) -> int | None:
        """Return the most tokens of each answer of a request that is passed on; None: those that it states."""
        limits = [stated.tokens, None if self.side else self.grant.sampling.get("max_tokens")]
        if not stated.settable:
            limits = [LONGEST_ANSWER]
        wanted = min((limit for limit in limits if limit is not None), default=None)
        most = await self._owner.reserve(self, wanted, stated.answers, target)
        return None if most == stated.tokens or not stated.settable else most

    async def note(
        self, request: GenerationRequest, *, restoring: bool = False
    ) -> GenerationRequest:
        """Note the tool results and the answers of earlier calls in a request, and return it without handles.

        `restoring`: with these answers as they were sampled, and the ids that its prompt continues.
        """
        conversation = await self._owner.conversation(self)
        # A request that was passed on, and is translated since its provider lacks the endpoint, is noted twice.
        self._results += [packed_step(step) for step in conversation.results(request.messages)]
        if self.forwarded:
            return request
        read = self._read = conversation.read(request)
        self._response, self._tools = request.response_id, bool(request.offered)
        if not restoring:
            return replace(request, messages=without_handles(request.messages))
        continuation = request.continuation or read.continuation
        return replace(request, messages=read.messages, continuation=continuation)

    async def recorded(
        self,
        events: AsyncGenerator[list[Event], None],
        request: GenerationRequest,
        target: PricedModel,
    ) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a call; its steps are in the store before the last one is yielded.

        `request` is the program's, which decides on token ids in the answer.
        """
        streamed: list[Event] = []
        finished = 0
        try:
            async with aclosing(events) as batches:
                async for batch in batches:
                    streamed += batch
                    finished += sum(isinstance(event, Finished) for event in batch)
                    if finished == request.choices and not self.settled.done():
                        await self.answered(turns_of(streamed, request.choices), target)
                    yield [_shown(event, request) for event in batch]
        except asyncio.CancelledError:
            raise self.withdrawn() from None
        except Exception as error:
            await self.refused(error)
            raise

    async def answered(self, turns: Sequence[Turn], target: PricedModel) -> None:
        """Record the answer of a call. Raises `RunEndedError` if the run has ended."""
        steps = []
        for choice, turn in enumerate(turns):
            step = agent_step(turn, target.name, self.started, self.extra(choice))
            assert step.usage is not None
            step.usage.cost_usd = target.cost(
                step.usage.prompt_tokens, step.usage.completion_tokens
            )
            if self.side:
                step.sample = None
            steps.append(step)
        await self.answered_with(steps)

    async def answered_with(self, steps: Sequence[AgentStep]) -> None:
        """Record the steps of an answer, one for each choice. Raises `RunEndedError` if the run has ended."""
        conversation = await self._owner.conversation(self)
        packed = []
        tokens, cost = 0, 0.0
        for step in steps:
            continued, sample = self._read.continued, None
            if step.sample is not None:
                sample = conversation.packed_sample(step.sample, continued)
            packed.append(packed_step(step, sample))
            conversation.add(step, continued=continued)
            if step.usage is not None:
                tokens += step.usage.completion_tokens
                cost += step.usage.cost_usd or 0.0
        self._owner.measure(self.grant.pass_id)
        tokens = 0 if self.side else tokens
        await self._settle(CallOutcome("answered", packed, tokens=tokens, cost_usd=cost))

    async def refused(self, error: BaseException) -> None:
        """Record that a call failed with `error`, with which its program is refused."""
        if isinstance(error, RunLimitError):
            await self._refuse(error.noted)
        elif not isinstance(error, RunEndedError):
            await self.refused_as(refusal_of(error))

    async def refused_as(self, refusal: Refusal) -> None:
        """Record that a call was refused."""
        kind = "length" if refusal.too_long else "infrastructure"
        noted = {"kind": kind, "status": refusal.status, "message": refusal.message}
        await self._refuse({**noted, "forwarded": True} if self.forwarded else noted)

    async def _refuse(self, noted: dict[str, Any]) -> None:
        self._last = CallOutcome("refused", refusal=noted)
        # Tried again at the call's end; it counts as lost if that fails, too.
        with suppress(StoreError):
            await self._settle(self._last)

    async def close(self, tokens: int, cost: float) -> None:
        """Record a call without an outcome, whose client has disconnected, or whose run has ended.

        `tokens`: those sampled so far, which count against the run's limit, as their `cost` in dollars does.
        """
        try:
            if not self.settled.done():
                status: CallStatus = "cancelled" if self.ending else "gone"
                tokens = 0 if self.side else tokens
                outcome = self._last or CallOutcome(status, tokens=tokens, cost_usd=cost)
                with suppress(HudError):
                    await asyncio.shield(asyncio.ensure_future(self._settle(outcome)))
        finally:
            if not self.settled.done():
                self.settled.set_result(None)
            self._owner.closed(self)

    def cancel(self) -> None:
        """Cancel the call, because its run has ended. Callable from any thread."""
        self.ending = True
        task = self._task
        assert task is not None
        with suppress(RuntimeError):  # The loop has ended, and its calls with it.
            self._loop.call_soon_threadsafe(task.cancel)

    def withdrawn(self) -> BaseException:
        """Return the error for a cancellation: `RunEndedError` for that by the run's end."""
        if not self.ending:
            return asyncio.CancelledError()
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return ended()

    async def _settle(self, outcome: CallOutcome) -> None:
        if self.settled.done():
            return
        noted = replace(outcome, results=self._results, continues=sorted(self._read.answers))
        await asyncio.to_thread(self._owner.store.settle, self.grant, self.number, noted)
        if not self.settled.done():
            self.settled.set_result(None)

    def extra(self, choice: int) -> dict[str, Any]:
        """Return the `extra` of the step of a choice."""
        extra: dict[str, Any] = {
            MODEL_CALL: {
                "pass": self.grant.pass_id,
                "number": self.number,
                "choice": choice,
                "conversation": self._read.digest or None,
                "tools": self._tools,
                "response": self._response,
            }
        }
        if self._read.rewrites and not choice:
            extra[REWRITES] = sorted([*key, kind] for key, kind in self._read.rewrites)
        if self.session:
            extra["session"] = self.session
        if self._overrides:
            extra["overridden"] = self._overrides
        if self.side or self.forwarded:
            extra["side_call"] = True
        if self.forwarded:
            extra["endpoint"] = self.forwarded
        return extra


class RunCalls:
    """Run passes of a platform: their calls in this process, over those in the store."""

    def __init__(self, store: Store) -> None:
        self.store = CallStore(store)
        self._lock = threading.Lock()
        self._open: dict[str, set[RunCall]] = {}
        self._conversations: OrderedDict[str, tuple[RunConversation, set[int]]] = OrderedDict()
        """By pass: the conversation, and the numbers of its calls that are in it or in progress here."""
        self._sizes: dict[str, int] = {}
        """By pass: bytes of its conversation."""
        self._size = 0
        self._unrecorded: dict[str, dict[str, str]] = {}
        """By pass: errors at the arrival of calls, which have no number, by the digest of the request."""
        self._watch: asyncio.Task[None] | None = None

    async def begin(
        self, who: Identity, body: dict[str, Any], session: Mapping[str, str]
    ) -> RunCall:
        """Return the call of a request; `session`: its headers of session and agent. Raises as `CallStore.begin`."""
        grant = who.run
        assert grant is not None
        digest = request_digest(body)
        try:
            number = await asyncio.to_thread(self.store.begin, grant, digest)
        except (RunEndedError, RunLimitError, PlatformError):
            raise
        except Exception as error:
            with self._lock:
                if len(self._unrecorded) >= MOST_CONVERSATIONS:
                    self._unrecorded.pop(next(iter(self._unrecorded)))
                self._unrecorded.setdefault(grant.pass_id, {})[digest] = refusal_of(error).message
            raise
        call = RunCall(self, grant, number, str(body.get("model")))
        call.session = {name: value[:LONGEST_HEADER] for name, value in session.items()}
        with self._lock:
            self._open.setdefault(grant.pass_id, set()).add(call)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look())
        return call

    async def reserve(
        self, call: RunCall, wanted: int | None, choices: int, target: PricedModel
    ) -> int | None:
        """Return the most tokens of each of `choices` answers; `wanted`: those of the program. None: no limit.

        They, and their cost, are the call's own of the run's limits until it is settled. Waits while calls in progress, here
        and at other servers, hold all that is left: calls at once sample no more than the limit, and cost no more than it and
        one prompt. Raises `RunLimitError` if nothing is left.
        """
        grant, price = call.grant, target.cost(0, 1)
        tokens_limit = None if call.side else grant.tokens
        cost_limit = None if price is None else grant.cost_usd
        if tokens_limit is None and cost_limit is None:
            return wanted
        if wanted is None and cost_limit is not None:
            wanted = LONGEST_ANSWER
        need = Need(
            tokens_limit,
            cost_limit,
            wanted,
            choices,
            price or 0.0,
            lambda answers: target.cost(call.prompt_tokens, answers) or 0.0,
        )
        while True:
            call.reserves = True
            most = await asyncio.to_thread(self.store.reserve, grant.pass_id, call.number, need)
            if most is not None:
                return most
            call.reserves = False
            with self._lock:
                others = tuple(self._open.get(grant.pass_id, ()))
            # Calls of other servers are looked for again after a while.
            here = [asyncio.wrap_future(other.settled) for other in others if other.reserves]
            pause = asyncio.ensure_future(asyncio.sleep(WATCH_SECONDS / 4))
            try:
                await asyncio.wait([*here, pause], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()

    async def conversation(self, call: RunCall) -> RunConversation:
        """Return the conversation of a call's run; what other servers have recorded is read from the store."""
        pass_id = call.grant.pass_id
        with self._lock:
            conversation, numbers = self._conversations.setdefault(
                pass_id, (RunConversation(), set())
            )
            self._conversations.move_to_end(pass_id)
            while len(self._conversations) > MOST_CONVERSATIONS:
                self._drop(next(iter(self._conversations)))
            numbers.add(call.number)
            complete = len(numbers) == max(numbers)
        if not complete:
            rows = await asyncio.to_thread(self.store.calls, pass_id)
            with self._lock:
                _take(conversation, numbers, rows)
        return conversation

    def measure(self, pass_id: str) -> None:
        """Count the conversation of a pass to which turns were added; the longest unused ones are dropped beyond the limit."""
        with self._lock:
            entry = self._conversations.get(pass_id)
            if entry is None:
                return
            size = entry[0].turns.size
            self._size += size - self._sizes.get(pass_id, 0)
            self._sizes[pass_id] = size
            while self._size > MOST_CONVERSATION_BYTES:
                self._drop(next(iter(self._conversations)))

    def _drop(self, pass_id: str) -> None:
        self._conversations.pop(pass_id, None)
        self._size -= self._sizes.pop(pass_id, 0)

    async def end(self, team: str, pass_id: str) -> dict[str, Any]:
        """End a pass: cancel its calls, and return the run's steps, the worst refusal and counts. Idempotent."""
        await asyncio.to_thread(self.store.end, team, pass_id)
        with self._lock:
            calls = list(self._open.get(pass_id, ()))
        for call in calls:
            call.cancel()
        settled = [asyncio.wrap_future(call.settled) for call in calls]
        if settled:
            await asyncio.wait(settled, timeout=GRACE_SECONDS)
        rows = await asyncio.to_thread(self.store.calls, pass_id)
        waited = 0.0
        while waited < GRACE_SECONDS and any(row.status == "open" for row in rows):
            await asyncio.sleep(WATCH_SECONDS / 4)
            waited += WATCH_SECONDS / 4
            rows = await asyncio.to_thread(self.store.calls, pass_id)
        with self._lock:
            self._drop(pass_id)
            unrecorded = dict(self._unrecorded.get(pass_id, {}))
        return await asyncio.to_thread(run_result, rows, unrecorded)

    def closed(self, call: RunCall) -> None:
        """Forget a call that has its outcome."""
        with self._lock:
            calls = self._open.get(call.grant.pass_id, set())
            calls.discard(call)
            if not calls:
                self._open.pop(call.grant.pass_id, None)

    async def _look(self) -> None:
        """Cancel calls whose run was ended by another server, or whose opener's key was revoked; keep what the others reserved."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            with self._lock:
                open_passes = set(self._open)
            if not open_passes:
                return
            with suppress(StoreError):
                over = await asyncio.to_thread(self.store.over, open_passes)
                with self._lock:
                    reserving = [
                        (call.grant.pass_id, call.number)
                        for calls in self._open.values()
                        for call in calls
                        if call.reserves
                    ]
                    calls = [call for pass_id in over for call in self._open.get(pass_id, ())]
                for call in calls:
                    call.cancel()
                await asyncio.to_thread(self.store.renew, reserving)


def _take(conversation: RunConversation, numbers: set[int], rows: Sequence[sa.Row[Any]]) -> None:
    """Add the answers of calls that another process recorded."""
    packed = [step for row in rows for step in unpacked(row.steps)]
    for payload in expand_samples(packed):
        place = payload["extra"][MODEL_CALL]
        if place["number"] in numbers:
            continue
        step = parse_step(payload)
        assert isinstance(step, AgentStep)
        conversation.add(step)
    for row in rows:
        for result in unpacked(row.results):
            conversation.unanswered.pop(result["call"]["id"], None)
    numbers |= {row.number for row in rows if row.status != "open"}


def _shown(event: Event, request: GenerationRequest) -> Event:
    """Return an event as the program gets it: with token ids only where it asked for them."""
    if isinstance(event, Finished) and event.sample is not None and not request.return_token_ids:
        return replace(event, sample=None)
    return event
