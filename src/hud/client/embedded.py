"""The platform in this process: the same ASGI application that a server runs.

The one module below the platform that reaches up to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from hud.platform.application import LOCAL, PlatformConfig, create_app

if TYPE_CHECKING:
    from hud.trace import ChatModel


class EmbeddedPlatform:
    """One `HUD_HOME`, opened."""

    def __init__(self, home: Path, database: str | None = None) -> None:
        self.app = create_app(PlatformConfig(home, database=database))
        self.platform = self.app.state.platform
        self.transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)

    async def chat_model(self, slug: str, checkpoint: str | None) -> ChatModel:
        """Return the policy of a registered model, without HTTP in between; a provider's is asked by the gateway."""
        if await self.platform.gateway.catalogue.provider(LOCAL.team_id, slug) is not None:
            from hud.inference.dialects.chat_completions.model import OpenAIChatModel

            return OpenAIChatModel(slug, base_url="http://openhud", transport=self.transport)
        model: ChatModel = await self.platform.chat_model(LOCAL.team_id, slug, checkpoint)
        return model

    def close(self) -> None:
        """Close the store, and stop what samples."""
        self.platform.close()
