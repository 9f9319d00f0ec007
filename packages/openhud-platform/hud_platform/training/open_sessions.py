"""Training sessions: one for each model, in one process; gradients accumulate until an optimizer step.
A session trains the weights that serve (`policies`). Its work runs on its own thread, in the order of the requests.
Its state is the head's checkpoint and the gradient accumulated since; a crash loses only that gradient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from hud.learning.training_calls import DiscardResult, HeldSession
from hud_platform.models.records import ModelRecord
from hud_platform.training.session import Session

if TYPE_CHECKING:
    from hud.client.contributor import Contributor
    from hud_platform.models.head_decision import HeadDecision
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.models.registry import Registry

__all__ = ["Session", "Sessions"]

T = TypeVar("T")


class Sessions:
    """Open training sessions of this process."""

    def __init__(self, registry: Registry, policies: Policies) -> None:
        self.registry = registry
        self.policies = policies
        self._open: dict[str, Session] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def open(self, model: ModelRecord) -> Session:
        """Return a model's session. Opening one takes the lease and loads the head.

        Raises `ConflictError` while another process trains the model.
        """
        session = self._open.get(model.id)
        if session is not None and not session.broken:
            return session
        return await self._on_thread(model.id, lambda: self._opened(model))

    async def set_head(
        self,
        model: ModelRecord,
        checkpoint_id: str | None,
        client: Contributor,
        decision: HeadDecision | None = None,
    ) -> None:
        """Move a model's head; an open session continues from there and drops its accumulated gradient.

        Raises `ConflictError` if the head is no longer the one that `decision` compared with.
        """
        self.registry.leases.refuse_if_held(model.id, model.slug, "moved to another checkpoint")
        await self._on_thread(model.id, lambda: self._move(model, checkpoint_id, client, decision))

    async def hold(self, model_id: str, client: Contributor) -> HeldSession:
        """Record a heartbeat of the training run that owns a session; returns whether `client` is the owner.
        Does not wait for a running pass.
        """
        session = self._open.get(model_id)
        return HeldSession(held=session is not None and session.lease.is_held_by(client))

    async def discard(self, model: ModelRecord, client: Contributor) -> DiscardResult:
        """Discard the accumulated gradient of a model, of any client; returns its description, None without a gradient.
        Raises `ConflictError` while another process trains the model: the gradient is in that process's memory.
        """
        self.registry.leases.refuse_if_held(model.id, model.slug, "cleared of a gradient")
        session = self._open.get(model.id)
        return DiscardResult(discarded=await session.discard(client) if session else None)

    async def close(self, model_id: str, owner: Contributor | None = None) -> None:
        """Release a model's lease and drop its accumulated gradient; the policy continues to serve.
        With `owner`, only a session owned by this client is closed.
        """
        session = self._open.get(model_id)
        if session is not None and owner in (None, session.lease.holder):
            del self._open[model_id]
            await self._on_thread(model_id, session.close)

    async def suspend(self) -> None:
        """Save unsaved steps of every session and release the leases, for the next process."""
        sessions, self._open = self._open, {}
        await asyncio.gather(
            *(self._on_thread(key, session.suspend) for key, session in sessions.items())
        )

    def close_all(self) -> None:
        """Close every session from outside the event loop: the process continues without this platform."""
        sessions, self._open = self._open, {}
        for waiting in [
            self._thread(key).submit(session.close) for key, session in sessions.items()
        ]:
            waiting.result()

    async def forget(self, model_id: str) -> None:
        """Close a model's session and unload its policies."""
        await self.close(model_id)
        self.policies.forget(model_id)
        threads = self._threads.pop(model_id, None)
        if threads is not None:
            threads.shutdown(wait=False)

    def _opened(self, model: ModelRecord) -> Session:
        # A concurrent call finds the session that the first one opened.
        session = self._open.get(model.id)
        if session is None or session.broken:
            session = self._open[model.id] = Session(
                self.registry, self.policies, model, self._thread(model.id)
            )
        return session

    def _move(
        self,
        model: ModelRecord,
        checkpoint_id: str | None,
        client: Contributor,
        decision: HeadDecision | None,
    ) -> None:
        tree = self.registry.tree
        if decision is None or checkpoint_id is None:
            tree.set_head(model, checkpoint_id)
        else:
            head = decision.compared_with
            tree.promote(model, checkpoint_id, decision.metrics, expected_head=head)
        session = self._open.get(model.id)
        if session is not None:
            session.continue_from(checkpoint_id, client)
            return
        serving = self.policies.loaded(model.id)
        if serving is not None:
            serving.move(model, checkpoint_id)

    async def _on_thread(self, model_id: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread(model_id), work)

    def _thread(self, model_id: str) -> ThreadPoolExecutor:
        if model_id not in self._threads:
            # One thread: torch starts a pool of workers for each calling thread.
            self._threads[model_id] = ThreadPoolExecutor(1, thread_name_prefix="hud-train")
        return self._threads[model_id]
