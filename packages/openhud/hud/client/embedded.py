"""Port of the embedded platform: the application that answers this process's requests where no server is set.

It joins by the entry point `embedded` of the group `hud.platforms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.plugs import load, plugs

if TYPE_CHECKING:
    import httpx

    from hud.trace import ChatModel

GROUP = "hud.platforms"


class EmbeddedPlatform(ABC):
    """An open `HUD_HOME`."""

    transport: httpx.AsyncBaseTransport
    """Way of a request to the application; nothing listens."""

    @abstractmethod
    def listening(self) -> AbstractContextManager[str]:
        """Yield an address of this machine where programs reach the gateway with run passes, and nothing else."""

    @abstractmethod
    def engine_process(self) -> AbstractAsyncContextManager[None]:
        """Sample and train in processes of their own during the block. It is left on the event loop that entered it."""

    @abstractmethod
    async def policy(
        self, slug: str, checkpoint: str | None, system_prompt: str | None = None
    ) -> ChatModel | None:
        """Return the policy of a registered model, for sampling without HTTP; None for a provider's model.

        `system_prompt` takes the place of the model's own.
        """

    @abstractmethod
    def ingest(self, lines: bytes) -> list[int]:
        """Store journal lines, as POST /v2/ingest does; return the numbers of those that cannot be stored."""

    @abstractmethod
    def close(self) -> None:
        """Close the store and the samplers."""


def open_embedded(home: Path, database: str | None) -> EmbeddedPlatform:
    """Open the platform over a `HUD_HOME`, with its database or another one.

    Raises `UsageError` where no package provides a platform, and `StoreError` for a store that cannot be opened.
    """
    point = plugs(GROUP).get("embedded")
    if point is None:
        raise UsageError(
            "This installation of openhud has no platform: install it again, or set HUD_API_URL to a server."
        )
    platform: EmbeddedPlatform = load(point, type)(home, database)
    return platform
