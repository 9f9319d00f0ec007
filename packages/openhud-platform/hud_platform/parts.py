"""`Parts`: composition of a platform. Every part is constructed here, from the parts that it uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from hud_platform.access.keys import Keys
from hud_platform.access.limits import Limits, Visitors
from hud_platform.access.page_paths import PagePaths
from hud_platform.access.passes import Passes
from hud_platform.access.signed_links import SignedLinks
from hud_platform.access.web_sessions import WebSessions
from hud_platform.environments.runtime_sessions import RuntimeSessions
from hud_platform.gateway.recorded_model import RecordedModel
from hud_platform.models.registry import Registry
from hud_platform.process.background import Background, Service, Work
from hud_platform.process.config import PlatformConfig
from hud_platform.process.metrics import Metrics
from hud_platform.search.run_index import RunIndexing
from hud_platform.serving.token_engine import EngineDownError
from hud_platform.store import Store
from hud_platform.store.ingest import Ingested, ingest, recover
from hud_platform.store.source_policies import Retention
from hud_platform.store.telemetry_admission import Intake
from hud_platform.training.optimizer_steps import StepsInFlight

if TYPE_CHECKING:
    from hud_platform.gateway.gateway import Gateway
    from hud_platform.gateway.run_passes.opening import RunPasses
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.models.records import ModelRecord
    from hud_platform.rollouts.fleet import Fleet
    from hud_platform.serving.token_engine import TokenEngine
    from hud_platform.training.open_sessions import Sessions

P = TypeVar("P")


class _Lazy(Generic[P]):
    """Part that is constructed at its first use, once, in any thread. Its import may load torch."""

    def __init__(self, make: Callable[[Parts], P]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, parts: Parts, owner: type[Parts]) -> P:
        made = parts.__dict__
        with parts.constructing:
            if self._make.__name__ not in made:
                made[self._make.__name__] = self._make(parts)
        made_part: P = made[self._make.__name__]
        return made_part


class Parts:
    """The parts of one platform in order of construction; `close` closes them in reverse order."""

    def __init__(
        self,
        config: PlatformConfig,
        services: Mapping[str, Callable[[Parts], Service]],
        page_paths: PagePaths,
    ) -> None:
        """`services`: makers of what stands behind foreign routes and pages. Raises `StoreError` if the store cannot be opened."""
        self.config = config
        self.page_paths = page_paths
        """Paths of all packages' pages."""
        self._service_makers = services
        self._services: dict[str, Service] = {}
        self.constructing = threading.RLock()
        self._opened = ExitStack()
        self.store = self._opened.enter_context(
            closing(Store.open(config.home, config.database, config.storage, private=config.keys))
        )
        recover(self.store, config.home / "journal")
        self.keys = Keys(self.store)
        self.web_sessions = WebSessions(self.store, self.keys)
        self.passes = Passes(config.home)
        self.links = SignedLinks(self.passes, self.keys)
        self.limits = Limits(self.store)
        self.visitors = Visitors()
        self.metrics = Metrics()
        self.intake = Intake()
        self.steps = StepsInFlight()
        self.registry = Registry(self.store, config.home, team=None)
        self.background = Background()
        self.stopping = self.background.stopping
        self.runtime_sessions = RuntimeSessions(self.stopping)

    @_Lazy
    def policies(self) -> Policies:
        """Loaded policies."""
        from hud_platform.models.loaded_policies import Policies

        return self._opened.enter_context(closing(Policies(self.registry)))

    @_Lazy
    def sessions(self) -> Sessions:
        """Open training sessions."""
        from hud_platform.training.open_sessions import Sessions

        made = Sessions(self.registry, self.policies)
        self._opened.callback(made.close_all)
        return made

    @_Lazy
    def engine(self) -> TokenEngine:
        """Engine for sampling and training."""
        if self.config.engine == "worker":
            from hud_platform.serving.pool import EnginePool

            return EnginePool(self.config)
        from hud_platform.serving.inline import InlineEngine

        return InlineEngine(self.policies, self.sessions)

    @_Lazy
    def gateway(self) -> Gateway:
        """Inference over HTTP, in every dialect."""
        from hud_platform.gateway.gateway import Gateway

        made = Gateway(
            self.registry, lambda: self.engine, self.limits, self.metrics, self.passes.sign
        )
        return self._opened.enter_context(closing(made))

    @_Lazy
    def run_passes(self) -> RunPasses:
        """Passes of programs that play runs."""
        from hud_platform.gateway.run_passes.opening import RunPasses

        return RunPasses(self.gateway.catalogue, self.gateway.runs, self.passes, self.links)

    @_Lazy
    def fleet(self) -> Fleet:
        """Queue of rollouts and the nodes that play them."""
        from hud_platform.rollouts.fleet import Fleet

        lease = self.config.rollout_lease_seconds
        return Fleet(self.keys, self.passes, self.registry, lease, self.stopping)

    def service(self, name: str) -> Service:
        """Return the service of that name, which is constructed at its first use."""
        with self.constructing:
            if name not in self._services:
                self._services[name] = self._service_makers[name](self)
        return self._services[name]

    @property
    def used_engine(self) -> TokenEngine | None:
        """The engine; None before the first request that needs it."""
        engine: TokenEngine | None = self.__dict__.get("engine")
        return engine

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run background work during the block. Leaving it drains the work, stops the engine and closes the parts."""
        async with AsyncExitStack() as stack:
            stack.callback(self.close)
            stack.push_async_callback(self._stop_engine)
            await stack.enter_async_context(self.background.running(self._works()))
            yield

    async def recorded_model(
        self,
        record: ModelRecord,
        checkpoint: str | None,
        team: str,
        system_prompt: str | None = None,
    ) -> RecordedModel:
        """Return a policy sampled in this process, whose turns are recorded as the gateway's requests are.

        `system_prompt` takes the place of the model's own.
        """
        from hud_platform.serving.inline import InlineEngine

        if isinstance(self.engine, InlineEngine):
            model = await self.policies.chat_model(record, checkpoint, system_prompt)
        else:
            from hud.engine.policy import PolicyChatModel
            from hud_platform.gateway.local import LocalModel
            from hud_platform.serving.engine_policy import EnginePolicy

            target = await self.gateway.catalogue.find(team, record.slug, checkpoint)
            assert isinstance(target, LocalModel)
            policy = EnginePolicy(
                self.engine, record, target.checkpoint, target.format.chat, target.system_prompt
            )
            model = PolicyChatModel(record.slug, policy, system_prompt)
        return RecordedModel(model, self.gateway.ledger, team)

    @asynccontextmanager
    async def engine_process(self) -> AsyncIterator[None]:
        """Sample and train in processes of their own during the block, unless this process has loaded policies."""
        if self.used_engine is not None or "policies" in self.__dict__:
            yield
            return
        from hud_platform.serving.owned_engine import OwnedEngine
        from hud_platform.serving.pool import EnginePool

        # Programs that play runs ask on another event loop.
        self.__dict__["engine"] = pool = OwnedEngine(EnginePool(self.config))
        try:
            yield
        finally:
            del self.__dict__["engine"]
            await pool.stop()

    def ingest(self, lines: bytes, team: str) -> Ingested:
        """Store journal lines of a team, as POST /v2/ingest does."""
        return ingest(self.store, lines, team)

    def close(self) -> None:
        """Release leases, stop samplers, and close the store."""
        self._opened.close()

    def _works(self) -> Iterator[Work]:
        """Yield the background work of a server."""
        for name in self._service_makers:
            yield self.service(name).work
        yield RunIndexing(self.store, self.stopping).work
        yield Retention(self.store, self.stopping).work
        if self.config.keys:
            from hud_platform.environments.builder import Builder
            from hud_platform.rollouts.worker_processes import Workers

            yield Builder(self.config, self.store, self.stopping).work
            yield Workers(self.config, self.store, self.passes, self.stopping).work
            yield self.runtime_sessions.work
            yield self.fleet.snapshots.work
        if self.config.engine == "worker":
            yield self.start_engine

    async def start_engine(self) -> None:
        """Start the engine before the first request, if a model needs it."""
        models = await asyncio.to_thread(self.registry.models)
        if any(model.config.provider is None for model in models):
            with suppress(EngineDownError):  # Logged by the engine, which restarts.
                await self.engine.start()

    async def _stop_engine(self) -> None:
        if self.used_engine is not None:
            await self.used_engine.stop()
