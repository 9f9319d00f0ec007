"""Token engine in this process: samples from its policies and trains in its sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from hud.client.contributor import UNNAMED, Contributor
from hud.engine.sample.request import Request, SamplerClosed, Turn
from hud.errors import NotFoundError, OverloadedError
from hud_platform.models.records import ModelRecord
from hud_platform.serving.calls import answer
from hud_platform.serving.token_engine import TokenDelta, TokenEnd, TokenEngine, TokenRequest

if TYPE_CHECKING:
    from hud.engine.policy import Policy
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.training.open_sessions import Sessions

MOST_WAITING = 1024
"""Maximum number of waiting sequences of one model; further ones are refused."""
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
                # Read before the tokens: if the sequence has ended, all of its tokens are visible.
                ended = drawn.outcome is not None
                if drawn.shown > seen:
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
        """Queue a sequence; `listener` is called from another thread when tokens were added.
        Raises `OverloadedError` if too many sequences wait, or if the model is repeatedly unloaded.
        """
        policy = await self._policy(model, checkpoint)
        waiting = policy.queue_length()
        if waiting >= MOST_WAITING:
            raise OverloadedError(
                f"{waiting:,} requests are already waiting for {model.slug!r}; try again in a moment."
            )
        constraint = None
        if request.grammar is not None:
            constraint = await asyncio.to_thread(policy.constraint, request.grammar)
        turn = Turn(
            prompt=request.prompt,
            pictures=request.pictures,
            params=request.params,
            stop_ids=request.stop_ids,
            followed=request.followed,
            tenant=request.tenant,
            top=request.top_logprobs,
            constraint=constraint,
        )
        for _ in range(_ATTEMPTS):
            # The policy may have been unloaded since it was looked up.
            with suppress(SamplerClosed):
                return policy.submit(turn, listener)
            policy = await self._policy(model, checkpoint)
        raise OverloadedError(
            f"{model.slug!r} was unloaded repeatedly while this request waited; try again in a moment."
        )

    async def _policy(self, model: ModelRecord, checkpoint: str | None) -> Policy:
        policy = self.policies.at_hand(model, checkpoint)
        if policy is not None:
            return policy
        if self._coming >= MOST_WAITING:
            raise OverloadedError(
                f"{self._coming:,} requests are already waiting for models to load; try again in a moment."
            )
        self._coming += 1
        try:
            # Shared with other requests: a cancelled one must not cancel it.
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
        """True: the engine is available as long as this process."""
        return True

    @property
    def streams(self) -> int:
        return sum(wake.streams for wake in list(self._wakes.values()))

    async def start(self) -> None:
        """Do nothing: models are loaded on first use."""

    async def stop(self) -> None:
        await self.sessions.suspend()
        await asyncio.to_thread(self.policies.close)

    def _wake(self) -> Wake:
        loop = asyncio.get_running_loop()
        wake = self._wakes.get(loop)
        if wake is None:
            wake = self._wakes[loop] = Wake(loop)
        return wake


class Wake:
    """Wakes all streams of one event loop that have new tokens, in one callback."""

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
        """Wait until a sequence has more than `seen` tokens or has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[drawn] = (seen, future)
        self._tell()  # Tokens may have been added before the waiter was registered.
        try:
            await future
        finally:
            self._waiting.pop(drawn, None)

    def notify(self) -> None:
        """Notify the streams of new tokens. Called from samplers' threads."""
        with self._lock:
            if self._pending:
                return
            self._pending = True
        with suppress(RuntimeError):  # A closed event loop has no waiting streams.
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._lock:
            self._pending = False
        for drawn, (seen, future) in self._waiting.items():
            if not future.done() and (drawn.outcome is not None or drawn.shown > seen):
                future.set_result(None)


def delta_of(drawn: Request, seen: int) -> TokenDelta:
    """Return the tokens after the first `seen` ones."""
    end = drawn.shown
    return TokenDelta(
        drawn.token_ids[seen:end],
        drawn.logprobs[seen:end],
        drawn.likeliest[seen:end] if drawn.top else None,
        drawn.cached,
        drawn.version,
        [swap for swap in drawn.swaps if swap[0] < end],
    )


def end_of(drawn: Request) -> TokenEnd:
    """Return the end of a sequence, or raise the error that it failed with. Raises `NotFoundError` before its end."""
    outcome = drawn.outcome
    if outcome is None:
        raise NotFoundError("This sequence has not ended.")
    if isinstance(outcome, Exception):
        raise outcome
    cut = outcome.finish_reason == "length"
    return TokenEnd("length" if cut else "stop", outcome.cached_tokens, outcome.version)
