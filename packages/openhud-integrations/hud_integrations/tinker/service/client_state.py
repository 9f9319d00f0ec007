"""Tinker's API on this platform: sessions of clients, their requests, and what trains and samples for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from hud.errors import HudError
from hud.platform.access.identity import Identity
from hud.platform.background import Service
from hud.platform.serving.token_engine import TokenEngine
from hud_integrations.tinker.service.checkpoint_paths import remove_expired
from hud_integrations.tinker.service.client_sessions import ClientSessions, TinkerSession
from hud_integrations.tinker.service.futures import Answer, Futures
from hud_integrations.tinker.service.sampling_clients import SamplingClients
from hud_integrations.tinker.service.training_clients import TrainingClient, TrainingClients

NAME = "tinker"
"""Name of the service, and of the entry point of its routes."""
SWEEP_SECONDS = 15.0
"""Interval between two searches for lost sessions and expired checkpoints."""

_log = logging.getLogger(__name__)


class ClientState(Service):
    """State of Tinker's clients in this process."""

    def __init__(self, engine: Callable[[], TokenEngine], stopping: asyncio.Event) -> None:
        self.sessions = ClientSessions()
        self.futures = Futures()
        self.training = TrainingClients(engine)
        self.sampling = SamplingClients(engine, self.training.is_ahead)
        self._stopping = stopping

    async def poll(self, request_id: str, who: Identity) -> Answer | None:
        """Return the result of a known request; None if it takes longer than a poll, or the server stops."""
        waiting = asyncio.ensure_future(self.futures.wait(request_id, who))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            stopping.cancel()

    async def finish(self, session: TinkerSession, reason: str) -> None:
        """End a session and release its models. The first reason stays."""
        session.finished = session.finished or reason
        await self._release(session)

    async def work(self) -> None:
        """Release the models of lost sessions and remove expired checkpoints, until the server stops."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SWEEP_SECONDS)
            await self.sweep()
        await self.futures.close()

    async def sweep(self) -> None:
        """Release the models of lost sessions and remove expired checkpoints, once."""
        for session in self.sessions.lost():
            await self._release(session)
        for training in self.training.all():
            await asyncio.to_thread(self._remove_expired, training)

    def _remove_expired(self, training: TrainingClient) -> None:
        with suppress(HudError):
            remove_expired(training.registry, training.registry.model(training.model_id))

    async def _release(self, session: TinkerSession) -> None:
        for name in session.runs:
            try:
                await self.training.release(name)
            except HudError as error:
                _log.warning("%s of a lost session was not released: %s", name, error)
        session.released = True
