"""`Platform`: one store, one registry, and the policies and training sessions that are open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hud.platform.access.keys import Keys
from hud.platform.access.limits import Limits, Visitors
from hud.platform.access.passes import Passes
from hud.platform.access.web_sessions import WebSessions
from hud.platform.config import PlatformConfig
from hud.platform.metrics import Metrics
from hud.platform.secrets import Secrets
from hud.platform.serving.tokens import EngineDownError
from hud.platform.store import Store
from hud.platform.store.ingest import recover
from hud.platform.store.telemetry_admission import Intake
from hud.platform.training.optimizer_steps import StepsInFlight

if TYPE_CHECKING:
    from hud.platform.baseline.sittings import Sittings
    from hud.platform.environments.playground import Worlds
    from hud.platform.environments.runtime_sessions import RuntimeSessions
    from hud.platform.gateway.gateway import Gateway
    from hud.platform.models.loaded_policies import Policies
    from hud.platform.models.registry import Registry
    from hud.platform.serving.tokens import TokenEngine
    from hud.platform.training.launcher import Launches
    from hud.platform.training.open_sessions import Sessions
    from hud.trace import ChatModel


_log = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""How long background work is given to end by itself."""
RESTART_SECONDS = 1.0
"""Between the end of background work that broke and its next beginning."""


class Platform:
    """What an application serves. Parts that load torch come into being when they are first used."""

    def __init__(self, config: PlatformConfig) -> None:
        self.config = config
        self.home = config.home
        self.store = Store.open(config.home, config.database, config.storage)
        self.keys = Keys(self.store)
        self.web_sessions = WebSessions(self.store, self.keys)
        self.passes = Passes(config.home)
        self.limits = Limits()
        self.visitors = Visitors()
        self.url = ""
        """Where a server answers; its own workers call it there."""
        self.metrics = Metrics()
        self.intake = Intake()
        self.steps = StepsInFlight()
        self.stopping = asyncio.Event()
        """Set when a server is on its way out: background work hands back what it holds, and ends."""
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What a server does beside answering; the embedded platform does none of it."""
        self._tasks: set[asyncio.Task[None]] = set()
        recover(self.store, self.home / "journal")

    @cached_property
    def registry(self) -> Registry:
        """Models and checkpoints of every team, for parts that were told which by a team's registry."""
        from hud.platform.models.registry import Registry

        return Registry(self.store, self.home, team=None)

    def registry_of(self, team: str) -> Registry:
        """Models and checkpoints as one team sees them."""
        from hud.platform.models.registry import Registry

        return Registry(self.store, self.home, team=team)

    def secrets_of(self, team: str) -> Secrets:
        """Keys of providers, as one team has them."""
        return Secrets(self.home, team)

    @cached_property
    def policies(self) -> Policies:
        """The policies that are loaded."""
        from hud.platform.models.loaded_policies import Policies

        return Policies(self.registry)

    @cached_property
    def sessions(self) -> Sessions:
        """The training sessions that are open."""
        from hud.platform.training.open_sessions import Sessions

        return Sessions(self)

    @cached_property
    def engine(self) -> TokenEngine:
        """What samples and trains."""
        if self.config.engine == "worker":
            from hud.platform.serving.pool import EnginePool

            return EnginePool(self.config)
        from hud.platform.serving.inline import InlineEngine

        return InlineEngine(self)

    @property
    def engine_up(self) -> bool:
        """False where the engine is wanted and not there."""
        return "engine" not in self.__dict__ or self.engine.up

    @property
    def streams(self) -> int:
        """Sequences that the engine draws, or that wait for it."""
        return self.engine.streams if "engine" in self.__dict__ else 0

    async def start_engine(self) -> None:
        """Have the engine up before the first request, where there are models for it."""
        models = await asyncio.to_thread(self.registry.models)
        if any(model.config.provider is None for model in models):
            with suppress(EngineDownError):  # It has told why, and tries again.
                await self.engine.start()

    @cached_property
    def gateway(self) -> Gateway:
        """Inference over HTTP, in every dialect."""
        from hud.platform.gateway.gateway import Gateway

        return Gateway(self)

    @cached_property
    def launches(self) -> Launches:
        """Training runs and evaluations that were launched from the dashboard."""
        from hud.platform.training.launcher import Launches

        return Launches(self)

    @cached_property
    def worlds(self) -> Worlds:
        """Environments that are open in the playground."""
        from hud.platform.environments.playground import Worlds

        return Worlds(self)

    @cached_property
    def runtime_sessions(self) -> RuntimeSessions:
        """Environments that run here while their agent plays elsewhere."""
        from hud.platform.environments.runtime_sessions import RuntimeSessions

        return RuntimeSessions(self)

    @cached_property
    def sittings(self) -> Sittings:
        """The people who take tasks here, for human baselines."""
        from hud.platform.baseline.sittings import Sittings

        return Sittings(self)

    async def end_sittings(self) -> None:
        """At the platform's stop, end what people sit at."""
        await self.stopping.wait()
        if "sittings" in self.__dict__:
            await self.sittings.work()

    async def chat_model(self, team: str, slug: str, checkpoint: str | None) -> ChatModel:
        """Return the policy of a team's model: at its head, wherever that moves, or pinned to a checkpoint."""
        return await self.policies.chat_model(self.registry_of(team).model(slug), checkpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be a server inside the block: background work runs, and ends with it."""
        self._tasks = {asyncio.create_task(self._persist(work)) for work in self.background}
        try:
            yield
        finally:
            await self.drain()
            if "engine" in self.__dict__:
                await self.engine.stop()
            self.close()

    async def drain(self) -> None:
        """Have background work hand back what it holds, and end. Requests are answered all the while."""
        self.stopping.set()
        tasks, self._tasks = self._tasks, set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()

    async def _persist(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do background work to its end; what breaks it is told, and it is begun again."""
        while not self.stopping.is_set():
            try:
                await work()
                return
            except Exception:
                _log.exception("Background work broke off and is begun again.")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), RESTART_SECONDS)

    def close(self) -> None:
        """Give leases back, stop what samples, and close the store."""
        if "sessions" in self.__dict__:
            self.sessions.close_all()
        if "gateway" in self.__dict__:
            self.gateway.close()
        if "policies" in self.__dict__:
            self.policies.close()
        self.store.close()
