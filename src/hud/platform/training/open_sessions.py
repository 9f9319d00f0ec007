"""Training sessions: one model, one process, gradients that accumulate until a step applies them.

A session trains the very weights that serve (`policies`). All of its work runs on one thread of its own, in the
order in which it was asked for. Its state is what the head's checkpoint holds and what was accumulated since;
losing it loses no more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from hud.learning.training_calls import DiscardResult, HeldSession
from hud.platform.models.records import ModelRecord
from hud.platform.training.session import Session

if TYPE_CHECKING:
    from hud.platform.models.loaded_policies import Policies
    from hud.platform.models.registry import Registry
    from hud.train.contributor import Contributor

__all__ = ["Session", "Sessions"]

T = TypeVar("T")


class Sessions:
    """The training sessions that are open in this process."""

    def __init__(self, registry: Registry, policies: Policies) -> None:
        self.registry = registry
        self.policies = policies
        self._open: dict[str, Session] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def open(self, model: ModelRecord) -> Session:
        """Return a model's session; opening one takes the lease and loads the head.

        Raises `ConflictError` while another process trains the model.
        """
        found = self._open.get(model.id)
        if found is not None and not found.broken:
            return found
        return await self._on_thread(model.id, lambda: self._opened(model))

    async def set_head(
        self, model: ModelRecord, checkpoint_id: str | None, client: Contributor
    ) -> None:
        """Move a model's head; an open session goes on from there, without what it had accumulated."""
        self.registry.leases.refuse_if_held(model.id, model.slug, "moved to another checkpoint")
        await self._on_thread(model.id, lambda: self._move(model, checkpoint_id, client))

    async def hold(self, model_id: str, client: Contributor) -> HeldSession:
        """Take a sign of life of the training run that a session belongs to; returns whether that is `client`.

        Waits for no pass.
        """
        session = self._open.get(model_id)
        return HeldSession(held=session is not None and session.lease.is_held_by(client))

    async def discard(self, model: ModelRecord, client: Contributor) -> DiscardResult:
        """Throw away what is accumulated for a model, by any client; returns what it was, None where there is nothing.

        Raises `ConflictError` while another process, which has it in its memory, trains the model.
        """
        self.registry.leases.refuse_if_held(model.id, model.slug, "cleared of a gradient")
        session = self._open.get(model.id)
        return DiscardResult(discarded=await session.discard(client) if session else None)

    async def close(self, model_id: str, owner: Contributor | None = None) -> None:
        """Give a model's lease back and drop what was accumulated; the policy goes on serving.

        With `owner`, only a session that is this client's own is closed.
        """
        session = self._open.get(model_id)
        if session is not None and owner in (None, session.lease.holder):
            del self._open[model_id]
            await self._on_thread(model_id, session.close)

    async def suspend(self) -> None:
        """Leave every model to the next process: what can be saved is, and leases are free."""
        sessions, self._open = self._open, {}
        await asyncio.gather(*(self._on_thread(key, one.suspend) for key, one in sessions.items()))

    def close_all(self) -> None:
        """Close every session from outside the event loop: the process goes on without this platform."""
        sessions, self._open = self._open, {}
        for waiting in [self._thread(key).submit(one.close) for key, one in sessions.items()]:
            waiting.result()

    async def forget(self, model_id: str) -> None:
        """Drop everything that is loaded of a model."""
        await self.close(model_id)
        self.policies.forget(model_id)
        threads = self._threads.pop(model_id, None)
        if threads is not None:
            threads.shutdown(wait=False)

    def _opened(self, model: ModelRecord) -> Session:
        # Asked twice at once, the second finds what the first made.
        found = self._open.get(model.id)
        if found is None or found.broken:
            found = self._open[model.id] = Session(
                self.registry, self.policies, model, self._thread(model.id)
            )
        return found

    def _move(self, model: ModelRecord, checkpoint_id: str | None, client: Contributor) -> None:
        self.registry.tree.set_head(model, checkpoint_id)
        session = self._open.get(model.id)
        if session is not None:
            session.continue_from(checkpoint_id, client)
            return
        serving = self.policies.loaded(model.id)
        if serving is not None:
            self.policies.move(serving, model, checkpoint_id)

    async def _on_thread(self, model_id: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread(model_id), work)

    def _thread(self, model_id: str) -> ThreadPoolExecutor:
        if model_id not in self._threads:
            # One thread: torch keeps a team of workers for each thread that calls it.
            self._threads[model_id] = ThreadPoolExecutor(1, thread_name_prefix="hud-train")
        return self._threads[model_id]
