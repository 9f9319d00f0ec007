"""`Platform`: one store, one registry, and the policies and training sessions that are open."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hud.platform.access.keys import Keys
from hud.platform.access.limits import Limits
from hud.platform.config import PlatformConfig
from hud.platform.store import Store
from hud.platform.store.ingest import recover

if TYPE_CHECKING:
    from hud.platform.policies import Policies
    from hud.platform.registry import Registry
    from hud.platform.serving.tokens import TokenEngine
    from hud.platform.sessions import Sessions
    from hud.trace import ChatModel


class Platform:
    """What an application serves. Parts that load torch come into being when they are first used."""

    def __init__(self, config: PlatformConfig) -> None:
        self.config = config
        self.home = config.home
        self.store = Store.open(config.home, config.database)
        self.keys = Keys(self.store)
        self.limits = Limits()
        recover(self.store, self.home / "journal")

    @cached_property
    def registry(self) -> Registry:
        """Models and checkpoints of every team, for parts that were told which by a team's registry."""
        from hud.platform.registry import Registry

        return Registry(self.store, self.home, team=None)

    def registry_of(self, team: str) -> Registry:
        """Models and checkpoints as one team sees them."""
        from hud.platform.registry import Registry

        return Registry(self.store, self.home, team=team)

    @cached_property
    def policies(self) -> Policies:
        """The policies that are loaded."""
        from hud.platform.policies import Policies

        return Policies(self.registry)

    @cached_property
    def sessions(self) -> Sessions:
        """The training sessions that are open."""
        from hud.platform.sessions import Sessions

        return Sessions(self)

    @cached_property
    def engine(self) -> TokenEngine:
        """What samples and trains."""
        from hud.platform.serving.inline import InlineEngine

        return InlineEngine(self)

    async def chat_model(self, team: str, slug: str, checkpoint: str | None) -> ChatModel:
        """Return the policy of a team's model: at its head, wherever that moves, or pinned to a checkpoint."""
        return await self.policies.chat_model(self.registry_of(team).model(slug), checkpoint)

    def close(self) -> None:
        """Stop what samples, and close the store."""
        if "policies" in self.__dict__:
            self.policies.close()
        self.store.close()
