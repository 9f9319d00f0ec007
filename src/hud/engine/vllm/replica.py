"""One server of a fleet, and how it is given weights: as an adapter, as a folder, or as tensors with the others at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from hud.engine.sample.request import Request
from hud.engine.vllm.publication import Publication
from hud.engine.vllm.server import LOAD_SECONDS, Server, ServerLost, ServerRefused
from hud.errors import HudError, UsageError

SETTLED_SECONDS = 0.05
"""A paused server from which nothing came for so long has sent what it drew before."""


class Member:
    """A server of a fleet."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.model = ""
        """What it calls the model."""
        self.max_context: int | None = None
        self.has: Publication | None = None
        """The weights that it draws with."""
        self.problem: str | None = "it was not asked yet"
        """Why it does not draw; None: it does."""
        self.resting_until = 0.0
        self.active: set[Request] = set()
        self.epoch = 0
        """Counts how often its streams were broken off: what comes from an older one is not taken."""
        self.adapters: set[str] = set()
        """Those that we had it load."""
        self.changing = asyncio.Lock()
        """Held while its weights change."""

    def break_off(self) -> None:
        """End every stream; their sequences go on elsewhere, or here, from the tokens that came."""
        self.epoch += 1
        self.server.break_off()

    async def give(self, publication: Publication) -> None:
        """Give it weights, and see whether it has them. Raises `HudError` where it cannot take them."""
        async with self.changing:
            if self.has is publication:
                return
            if publication.adapter is None:
                await self._reload(publication)
            else:
                await self._load_adapter(publication.adapter, publication)
            await self._probe(publication)
            self.has = publication

    async def tidy(self, current: Publication | None) -> None:
        """Unload adapters that nobody draws with any more."""
        if self.active or self.changing.locked():
            return
        used = {one.adapter for one in (current, self.has) if one is not None}
        for name in self.adapters - used:
            self.adapters.discard(name)
            with suppress(HudError):
                await self.server.unload_adapter(name)

    async def _reload(self, publication: Publication) -> None:
        try:
            await self.server.pause()
            await self.server.reload(str(publication.folder))
        except ServerRefused as error:
            raise _without(error, "VLLM_SERVER_DEV_MODE=1") from error
        await self._go_on(publication)

    async def _go_on(self, publication: Publication) -> None:
        """Have a paused server continue with other weights, and write down from where."""
        await self._settled()
        for request in self.active:
            request.swap(publication.version)
        await self.server.resume()

    async def _load_adapter(self, name: str, publication: Publication) -> None:
        try:
            await self.server.load_adapter(name, str(publication.folder))
        except ServerRefused as error:
            known = {card.name for card in await self.server.models()}
            # Names are those of checkpoints: what is there already is the same.
            if name not in known:
                raise _without(
                    error, "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                ) from error
        self.adapters.add(name)

    async def _probe(self, publication: Publication) -> None:
        model = publication.adapter or self.model
        answers = await asyncio.gather(
            *(
                self.server.complete({**probe.body(model), "cache_salt": publication.salt})
                for probe in publication.probes
            )
        )
        mistake = publication.mistake(answers)
        if mistake is not None:
            raise UsageError(f"The vLLM server {self.server.url} is of no use: {mistake}.")

    async def _settled(self) -> None:
        """Wait until what a paused server drew before has arrived."""
        for _ in range(40):
            left = self.server.heard + SETTLED_SECONDS - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)


async def send(members: Sequence[Member], publication: Publication) -> None:
    """Give several servers weights at once, as tensors: all of them take part, or none has them.

    Raises `HudError`; what each of them then has is not known.
    """
    transfer = publication.transfer
    assert transfer is not None
    async with AsyncExitStack() as stack:
        for member in members:
            await stack.enter_async_context(member.changing)
        try:
            await asyncio.gather(*(member.server.pause() for member in members))
            sizes = await asyncio.gather(*(member.server.world_size() for member in members))
            servers = [member.server for member in members]
            await transfer.send(servers, sizes, publication.version)
        except (HudError, TimeoutError) as error:
            transfer.drop()
            for member in members:
                # Begun and not ended, an update would be in the way of the next.
                with suppress(HudError):
                    await member.server.transfer("finish_weight_update", None)
            if isinstance(error, ServerRefused):
                raise _without(error, "VLLM_SERVER_DEV_MODE=1") from error
            if isinstance(error, TimeoutError):
                raise ServerLost(
                    f"The weights did not reach the vLLM servers within {LOAD_SECONDS:.0f} s."
                ) from error
            raise
        await asyncio.gather(*(member._go_on(publication) for member in members))
        await asyncio.gather(*(member._probe(publication) for member in members))
        for member in members:
            member.has = publication


def _without(error: ServerRefused, needed: str) -> UsageError:
    """Return what a refusal of the API for weights means."""
    missing = error.code in (404, 405)
    cure = f" The server was started without {needed}: start it again with it." if missing else ""
    return UsageError(f"{error}{cure}")
