"""Several vLLM servers of one model: which answer, which weights each has, and how new weights reach them.

A server draws only while it has the newest weights; one that was away is given them, and asked whether it has them, before it
draws again. Belongs to one event loop. Knows servers and publications; what is drawn is the sampler's.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from hud.engine.sequence import Request
from hud.engine.vllm.publishing import Publication
from hud.engine.vllm.routing import Affinity
from hud.engine.vllm.wire import Server, ServerBusy, ServerLost, ServerRefused
from hud.errors import HudError, InfrastructureFault, UsageError

log = logging.getLogger(__name__)

OLDEST = (0, 16)
"""The first version that reloads weights from another folder, and that holds what is in flight meanwhile."""
REST_SECONDS = 5.0
"""How long a server that takes nothing new is left alone."""
SETTLED_SECONDS = 0.05
"""A paused server from which nothing came for so long has sent what it drew before."""


@dataclass(frozen=True)
class Patience:
    """How long one waits for servers, in seconds."""

    look: float = 5.0
    """Between two looks at each server."""
    health: float = 10.0
    """For a server to say that it lives."""
    server: float = 120.0
    """Until a sequence fails for which there is no server."""
    silence: float = 900.0
    """Until a server is given up that draws nothing for those who wait."""
    drain: float = 1800.0
    """Until turns that should be finished first are continued by new weights all the same."""


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


class Fleet:
    """The servers of one model."""

    def __init__(self, urls: Sequence[str], key: str | None, patience: Patience) -> None:
        self._urls, self._key = urls, key
        self.patience = patience
        self.members: list[Member] = []
        self.current: Publication | None = None
        """The newest weights."""
        self._affinity = Affinity()
        self._session: aiohttp.ClientSession | None = None
        self._changed = asyncio.Event()
        self._publishing = 0
        self._looking: set[asyncio.Task[None]] = set()

    async def open(self, publication: Publication) -> None:
        """Give every server the weights, and begin to look after them.

        Raises `UsageError` where one is not what it should be, `InfrastructureFault` where none answers.
        """
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 18,
        )
        self.members = [Member(Server(url, self._session, self._key)) for url in self._urls]
        self.current = publication
        problems = await asyncio.gather(*(self._join(member) for member in self.members))
        for problem in problems:
            if isinstance(problem, UsageError):
                raise problem
        if all(problem is not None for problem in problems):
            raise InfrastructureFault(self._nobody())
        for member in self.members:
            if member.problem is not None:
                log.warning("%s It is asked again every %g s.", member.problem, self.patience.look)
        self._looking = {asyncio.create_task(self._look(member)) for member in self.members}

    async def close(self) -> None:
        """Hang up."""
        for task in self._looking:
            task.cancel()
        for task in self._looking:
            with suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()

    # -- choosing -----------------------------------------------------------------------------------

    @property
    def max_context(self) -> int | None:
        """Most tokens of a conversation that every server holds."""
        told = [one.max_context for one in self.members if one.max_context is not None]
        return min(told, default=None)

    async def choose(self, tokens: Sequence[int]) -> Member:
        """Return the server to continue `tokens` on, once there is one.

        Raises `InfrastructureFault` where none comes up in time.
        """
        late = time.monotonic() + self.patience.server
        while True:
            now = time.monotonic()
            loads = {
                member: len(member.active)
                for member in self.members
                if member.problem is None
                and member.has is self.current
                and member.resting_until <= now
            }
            if loads:
                return self._affinity.choose(tokens, loads)
            if self._publishing:
                late = now + self.patience.server  # Loading has time-outs of its own.
            elif now > late:
                raise InfrastructureFault(self._nobody())
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(1.0, self.patience.look))

    def drew(self, member: Member, tokens: Sequence[int]) -> None:
        """A server has drawn to the end of `tokens`: what continues them is best drawn there."""
        self._affinity.remember(member, tokens)

    async def failed(self, member: Member, error: HudError) -> None:
        """Say that a sequence failed on a server, and find out whether that is its end."""
        if isinstance(error, ServerBusy):
            member.resting_until = time.monotonic() + REST_SECONDS
        elif isinstance(error, ServerRefused):
            # It does not know our adapter any more: another process had it forgotten, or it was started again.
            self._lose(member, str(error))
        elif member.problem is None:
            try:
                await member.server.health(self.patience.health)
            except HudError as worse:
                self._lose(member, str(worse))

    # -- weights ------------------------------------------------------------------------------------

    async def publish(self, publication: Publication, *, in_flight: bool) -> None:
        """Give new weights to every server that answers; the others get them when they do.

        With `in_flight` sequences on their way are continued with them, otherwise finished with the old.
        """
        self._publishing += 1
        try:
            members = [member for member in self.members if member.problem is None]
            if publication.adapter is not None:
                await asyncio.gather(*(self._given(member, publication) for member in members))
                self.current = publication
                if in_flight:
                    for member in members:
                        member.break_off()
            else:
                self.current = publication  # From here on nobody begins with the old weights.
                if not in_flight:
                    await self._drained(members)
                await asyncio.gather(*(self._given(member, publication) for member in members))
            for member in members:
                await self._tidy(member)
        finally:
            self._publishing -= 1
            self._changed.set()

    async def _drained(self, members: Iterable[Member]) -> None:
        late = time.monotonic() + self.patience.drain
        while any(member.active for member in members) and time.monotonic() < late:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)

    def began(self, member: Member, request: Request) -> None:
        """A sequence is given to a server."""
        if not member.active:
            member.server.heard = time.monotonic()
        member.active.add(request)

    def ended(self, member: Member, request: Request) -> None:
        """A sequence has left a server."""
        member.active.discard(request)
        if not member.active:
            self._changed.set()

    async def _given(self, member: Member, publication: Publication) -> HudError | None:
        """Give weights to a server; one that cannot take them draws no more. Returns why not."""
        try:
            async with member.changing:
                if member.has is publication:
                    return None
                if publication.adapter is None:
                    await self._reload(member, publication)
                else:
                    await self._load_adapter(member, publication.adapter, publication)
                await self._probe(member, publication)
                member.has = publication
        except HudError as error:
            self._lose(member, str(error))
            return error
        return None

    async def _reload(self, member: Member, publication: Publication) -> None:
        try:
            await member.server.pause()
            await member.server.reload(str(publication.folder))
            await _settled(member.server)
        except ServerRefused as error:
            raise _without(error, "VLLM_SERVER_DEV_MODE=1") from error
        except HudError:
            # With which weights it would go on is not known.
            member.break_off()
            raise
        self._affinity.forget(member)
        for request in member.active:
            request.swap(publication.version)
        await member.server.resume()

    async def _load_adapter(self, member: Member, name: str, publication: Publication) -> None:
        try:
            await member.server.load_adapter(name, str(publication.folder))
        except ServerRefused as error:
            known = {card.name for card in await member.server.models()}
            # Names are those of checkpoints: what is there already is the same.
            if name not in known:
                raise _without(
                    error, "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                ) from error
        member.adapters.add(name)
        self._affinity.forget(member)

    async def _tidy(self, member: Member) -> None:
        """Unload adapters that nobody draws with any more."""
        current = None if self.current is None else self.current.adapter
        has = None if member.has is None else member.has.adapter
        if member.active or member.changing.locked():
            return
        for name in member.adapters - {current, has}:
            member.adapters.discard(name)
            with suppress(HudError):
                await member.server.unload_adapter(name)

    async def _probe(self, member: Member, publication: Publication) -> None:
        model = publication.adapter or member.model
        answers = await asyncio.gather(
            *(
                member.server.complete({**probe.body(model), "cache_salt": publication.salt})
                for probe in publication.probes
            )
        )
        mistake = publication.mistake(answers)
        if mistake is not None:
            raise UsageError(f"The vLLM server {member.server.url} is of no use: {mistake}.")

    # -- servers that come and go -------------------------------------------------------------------

    async def _look(self, member: Member) -> None:
        """Look after a server, until cancelled."""
        while True:
            await asyncio.sleep(self.patience.look)
            if member.problem is not None:
                await self._join(member)
                continue
            silent = time.monotonic() - member.server.heard
            waited_for = member.active and not member.changing.locked()
            if waited_for and silent > self.patience.silence:
                self._lose(
                    member,
                    f"The vLLM server {member.server.url} has drawn nothing for {silent:.0f} s.",
                )
                continue
            try:
                await member.server.health(self.patience.health)
                await self._tidy(member)
            except HudError as error:
                self._lose(member, str(error))

    async def _join(self, member: Member) -> HudError | None:
        """Take a server in, if it is what it should be; returns why it was not."""
        try:
            await self._check(member)
        except HudError as error:
            member.problem = str(error)
            return error
        publication = self.current
        assert publication is not None
        member.has = None  # Whatever it had: it may have been started again.
        problem = await self._given(member, publication)
        if problem is None:
            member.problem = None
            self._changed.set()
        return problem

    async def _check(self, member: Member) -> None:
        server = member.server
        try:
            version = await server.version()
            cards = await server.models()
        except ServerRefused as error:
            raise UsageError(
                f"{server.url} does not answer as a vLLM server does: {error}"
            ) from error
        number = re.match(r"(\d+)\.(\d+)", version)
        if number is not None and (int(number[1]), int(number[2])) < OLDEST:
            raise UsageError(
                f"The vLLM server {server.url} is of version {version}; {'.'.join(map(str, OLDEST))} is the oldest that "
                "does what training needs. Upgrade it: pip install -U vllm"
            )
        bases = [card for card in cards if card.parent is None]
        if not bases:
            raise UsageError(f"The vLLM server {server.url} serves no model.")
        member.model, member.max_context = bases[0].name, bases[0].max_context

    def _lose(self, member: Member, problem: str) -> None:
        if member.problem is None:
            log.error("%s It is asked again every %g s.", problem, self.patience.look)
        member.problem = problem
        member.has = None
        self._affinity.forget(member)
        member.break_off()
        self._changed.set()

    def _nobody(self) -> str:
        told = " ".join(
            member.problem or f"{member.server.url} is busy." for member in self.members
        )
        return f"No vLLM server can draw now. {told}"


async def _settled(server: Server) -> None:
    """Wait until what a paused server drew before has arrived."""
    for _ in range(40):
        left = server.heard + SETTLED_SECONDS - time.monotonic()
        if left <= 0:
            return
        await asyncio.sleep(left)


def _without(error: ServerRefused, needed: str) -> UsageError:
    """Return what a refusal of the API for weights means."""
    missing = error.code in (404, 405)
    cure = f" The server was started without {needed}: start it again with it." if missing else ""
    return UsageError(f"{error}{cure}")


__all__ = ["Fleet", "Member", "Patience", "ServerLost"]
