"""The token engine of this process: its policies sample, its sessions train."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from hud.engine.sample.request import Request, SamplerClosed, Turn
from hud.errors import NotFoundError
from hud.platform.models.records import ModelRecord
from hud.platform.serving.calls import answer
from hud.platform.serving.token_engine import (
    OverloadedError,
    TokenDelta,
    TokenEnd,
    TokenEngine,
    TokenRequest,
)
from hud.train.contributor import UNNAMED, Contributor

if TYPE_CHECKING:
    from hud.engine.policy import Policy
    from hud.platform.models.loaded_policies import Policies
    from hud.platform.training.open_sessions import Sessions

MOST_WAITING = 1024
"""Sequences of one model that wait for a slot before further ones are refused."""
_ATTEMPTS = 5


class InlineEngine(TokenEngine):
    """`TokenEngine` over the policies and sessions of this process."""

    def __init__(self, policies: Policies, sessions: Sessions) -> None:
        self.policies = policies
        self.sessions = sessions
        self._coming = 0
        self._wakes: WeakKeyDictionary[asyncio.AbstractEventLoop, Wake] = WeakKeyDictionary()

    async def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[TokenDelta | TokenEnd, None]:
        wake = self._wake()
        drawn = await self.submit(model, checkpoint, request, wake.notify)
        seen = 0
        try:
            while True:
                # First: once it has ended, everything that was drawn is there to be seen.
                ended = drawn.outcome is not None
                if len(drawn.logprobs) > seen:
                    delta = delta_of(drawn, seen)
                    seen += len(delta.token_ids)
                    yield delta
                elif ended:
                    yield end_of(drawn)
                    return
                else:
                    await wake.progress(drawn, seen)
        finally:
            drawn.abandon()

    async def submit(
        self,
        model: ModelRecord,
        checkpoint: str | None,
        request: TokenRequest,
        listener: Callable[[], None],
    ) -> Request:
        """Queue a sequence; `listener` is called from another thread when there is something new to see.

        Raises `OverloadedError` where too many wait, and where the model keeps being unloaded.
        """
        policy = await self._policy(model, checkpoint)
        waiting = policy.queue_length()
        if waiting >= MOST_WAITING:
            raise OverloadedError(
                f"{waiting:,} requests wait for {model.slug!r} already; try again in a moment."
            )
        constraint = None
        if request.grammar is not None:
            constraint = await asyncio.to_thread(policy.constraint, request.grammar)
        turn = Turn(
            prompt=request.prompt,
            params=request.params,
            stop_ids=request.stop_ids,
            followed=True,
            tenant=request.tenant,
            top=request.top_logprobs,
            constraint=constraint,
        )
        for _ in range(_ATTEMPTS):
            # Between the look and here it may have been unloaded.
            with suppress(SamplerClosed):
                return policy.submit(turn, listener)
            policy = await self._policy(model, checkpoint)
        raise OverloadedError(f"{model.slug!r} comes and goes too fast; try again in a moment.")

    async def _policy(self, model: ModelRecord, checkpoint: str | None) -> Policy:
        policy = self.policies.at_hand(model, checkpoint)
        if policy is not None:
            return policy
        if self._coming >= MOST_WAITING:
            raise OverloadedError(
                f"{self._coming:,} requests wait for models that are being loaded; try again in a moment."
            )
        self._coming += 1
        try:
            # Shared with others: whoever goes away must not take it from them.
            coming = self.policies.bring(model, checkpoint)
            return await asyncio.shield(asyncio.wrap_future(coming))
        finally:
            self._coming -= 1

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        return await answer(self.sessions, model, body, client)

    async def status(self) -> dict[str, Any]:
        return {"streams": self.streams, "models": self.policies.status()}

    @property
    def up(self) -> bool:
        """True: it lives as long as this process."""
        return True

    @property
    def streams(self) -> int:
        return sum(wake.streams for wake in list(self._wakes.values()))

    async def start(self) -> None:
        """Nothing: models are loaded on first use."""

    async def stop(self) -> None:
        await self.sessions.suspend()
        await asyncio.to_thread(self.policies.close)

    def _wake(self) -> Wake:
        loop = asyncio.get_running_loop()
        found = self._wakes.get(loop)
        if found is None:
            found = self._wakes[loop] = Wake(loop)
        return found


class Wake:
    """Wakes the streams of one event loop for which something was drawn, all of them in one turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending = False
        self._waiting: dict[Request, tuple[int, asyncio.Future[None]]] = {}

    @property
    def streams(self) -> int:
        """Number of waiting streams."""
        return len(self._waiting)

    async def progress(self, drawn: Request, seen: int) -> None:
        """Wait until there is more of a sequence than the first `seen` tokens, or it ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[drawn] = (seen, future)
        self._tell()  # It may have come between the look and here.
        try:
            await future
        finally:
            self._waiting.pop(drawn, None)

    def notify(self) -> None:
        """Something was drawn; called from samplers' threads."""
        with self._lock:
            if self._pending:
                return
            self._pending = True
        with suppress(RuntimeError):  # A loop that is closed has nobody waiting on it.
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._lock:
            self._pending = False
        for drawn, (seen, future) in self._waiting.items():
            if not future.done() and (drawn.outcome is not None or len(drawn.logprobs) > seen):
                future.set_result(None)


def delta_of(drawn: Request, seen: int) -> TokenDelta:
    """Return what was drawn beyond the first `seen` tokens."""
    # The thread appends ids, then logprobs: the shorter list is what is whole.
    end = len(drawn.logprobs)
    return TokenDelta(
        drawn.token_ids[seen:end],
        drawn.logprobs[seen:end],
        drawn.likeliest[seen:end] if drawn.top else None,
        drawn.cached,
        drawn.version,
        [swap for swap in drawn.swaps if swap[0] < end],
    )


def end_of(drawn: Request) -> TokenEnd:
    """Return how a sequence ended, or raise why it failed. Raises `NotFoundError` where it has not ended."""
    outcome = drawn.outcome
    if outcome is None:
        raise NotFoundError("This sequence has not ended.")
    if isinstance(outcome, Exception):
        raise outcome
    cut = outcome.finish_reason == "length"
    return TokenEnd("length" if cut else "stop", outcome.cached_tokens, outcome.version)
