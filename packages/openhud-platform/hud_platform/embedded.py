"""The platform in this process: the same ASGI application as a server's."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from hud.client.embedded import EmbeddedPlatform
from hud_platform.access import LOCAL
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

if TYPE_CHECKING:
    from hud.trace import ChatModel
    from hud_platform.gateway.run_passes.loopback import Loopback


class EmbeddedApplication(EmbeddedPlatform):
    """An open `HUD_HOME`."""

    def __init__(self, home: Path, database: str | None = None) -> None:
        self.app = create_app(PlatformConfig(home, database=database))
        self.parts = self.app.state.parts
        self.transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
        self._loopback: Loopback | None = None
        self._opening = threading.Lock()

    def listening(self) -> AbstractContextManager[str]:
        """Yield an address of this machine where programs reach the gateway with run passes, and nothing else."""
        # Imports a server.
        from hud_platform.gateway.run_passes.loopback import Loopback

        with self._opening:
            if self._loopback is None:
                self._loopback = Loopback(self.app, self.parts.passes)
        return self._loopback.opened()

    @asynccontextmanager
    async def engine_process(self) -> AsyncIterator[None]:
        """Sample and train in processes of their own during the block. It is left on the event loop that entered it."""
        async with self.parts.engine_process():
            yield

    async def policy(
        self, slug: str, checkpoint: str | None, system_prompt: str | None = None
    ) -> ChatModel | None:
        """Return the policy of a registered model, for sampling without HTTP; None for a provider's model.

        `system_prompt` takes the place of the model's own.
        """
        if await self.parts.gateway.catalogue.provider(LOCAL.team_id, slug) is not None:
            return None
        record = self.parts.registry.of(LOCAL.team_id).model(slug)
        record.check_answers()
        model: ChatModel = await self.parts.recorded_model(
            record, checkpoint, LOCAL.team_id, system_prompt
        )
        return model

    def ingest(self, lines: bytes) -> list[int]:
        """Store journal lines, as POST /v2/ingest does; return the numbers of those that cannot be stored."""
        damaged: list[int] = self.parts.ingest(lines, LOCAL.team_id).damaged
        return damaged

    def close(self) -> None:
        """Close the store and the samplers."""
        self.parts.close()
