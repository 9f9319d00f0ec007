"""Tinker's API on this platform: sessions of clients, their requests, and what trains and samples for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from hud.errors import HudError
from hud_integrations.tinker.service.checkpoint_paths import remove_expired
from hud_integrations.tinker.service.client_sessions import (
    LONGEST_REASON,
    ClientSessions,
    TinkerSession,
)
from hud_integrations.tinker.service.futures import Answer, Futures
from hud_integrations.tinker.service.sampling_clients import SamplingClients
from hud_integrations.tinker.service.training_clients import TrainingClient, TrainingClients
from hud_platform.access.identity import Identity
from hud_platform.access.keys import Keys
from hud_platform.process.background import Service
from hud_platform.serving.token_engine import TokenEngine

NAME = "tinker"
"""Name of the service, and of the entry point of its routes."""
KEY_SECONDS = 1.0
"""Interval between two checks of the keys whose sampling requests run."""
SWEEP_SECONDS = 15.0
"""Interval between two searches for lost sessions and expired checkpoints."""

_log = logging.getLogger("hud.tinker")


class ClientState(Service):
    """State of Tinker's clients in this process."""

    def __init__(
        self, engine: Callable[[], TokenEngine], keys: Keys, stopping: asyncio.Event
    ) -> None:
        self.sessions = ClientSessions()
        self.futures = Futures()
        self.training = TrainingClients(engine)
        self.sampling = SamplingClients(engine, self.training.is_ahead)
        self._keys = keys
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
        session.finished = session.finished or reason[:LONGEST_REASON]
        await self._release(session)

    async def work(self) -> None:
        """Release the models of lost sessions, remove expired checkpoints and end sampling of ended keys, until the server stops."""
        watching = asyncio.create_task(self._watch_keys())
        try:
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), SWEEP_SECONDS)
                await self.sweep()
        finally:
            watching.cancel()
        await self.futures.close()

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(KEY_SECONDS)
            with suppress(HudError):  # While the store is unavailable, keys stay valid.
                await self.end_sampling()

    async def end_sampling(self) -> None:
        """Cancel the sampling requests of keys that were revoked or expired: nobody can fetch their results."""
        for key_id in self.futures.sampling_keys():
            key = await asyncio.to_thread(self._keys.by_id, key_id)
            if key is None or not key.valid:
                self.futures.cancel_sampling(key_id)

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
