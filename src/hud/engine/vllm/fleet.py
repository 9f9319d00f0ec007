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

from hud.engine.sample.request import Request
from hud.engine.vllm.publication import Publication
from hud.engine.vllm.replica import Member, send
from hud.engine.vllm.routing import Affinity
from hud.engine.vllm.server import Server, ServerBusy, ServerRefused
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.outbound import Reach, guarded_session

log = logging.getLogger(__name__)

OLDEST = (0, 16)
"""The first version that reloads weights from another folder, and that holds what is in flight meanwhile."""
REST_SECONDS = 5.0
"""How long a server that takes nothing new is left alone."""


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


class Fleet:
    """The servers of one model."""

    def __init__(
        self, urls: Sequence[str], key: str | None, patience: Patience, reach: Reach
    ) -> None:
        self._urls, self._key, self._reach = urls, key, reach
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
        self._session = guarded_session(self._reach, read_bufsize=1 << 18)
        self.members = [Member(Server(url, self._session, self._key)) for url in self._urls]
        self.current = publication
        problems = await asyncio.gather(*(self._check(member) for member in self.members))
        sound = [one for one, why in zip(self.members, problems, strict=True) if why is None]
        problems += await self._first(sound, publication)
        for problem in problems:
            if isinstance(problem, UsageError):
                raise problem
        if all(member.problem is not None for member in self.members):
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
            await self._alive(member)

    # -- weights ------------------------------------------------------------------------------------

    async def publish(self, publication: Publication, *, in_flight: bool) -> None:
        """Give new weights to every server that answers; the others get them when they do.

        With `in_flight` sequences on their way are continued with them, otherwise finished with the old.
        """
        self._publishing += 1
        try:
            members = [member for member in self.members if member.problem is None]
            if publication.adapter is not None:
                await self._give(members, publication)
                self.current = publication
                if in_flight:
                    for member in members:
                        member.break_off()
            else:
                self.current = publication  # From here on nobody begins with the old weights.
                if not in_flight:
                    await self._drained(members)
                await self._give(members, publication)
            for member in members:
                await member.tidy(publication)
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

    async def _give(
        self, members: Sequence[Member], publication: Publication
    ) -> list[HudError | None]:
        """Give weights to servers; returns why each could not take them, and draws no more until it can."""
        if publication.transfer is None:
            found = await asyncio.gather(*(self._given(one, publication) for one in members))
        else:
            found = await self._sent(members, publication)
        for member in members:
            self._affinity.forget(member)  # What it knows is other weights'.
        return list(found)

    async def _sent(
        self, members: Sequence[Member], publication: Publication
    ) -> list[HudError | None]:
        """Send tensors to servers, which all take part or get none: those that are gone are left out."""
        found = await asyncio.gather(*(self._alive(member) for member in members))
        sound = [one for one, why in zip(members, found, strict=True) if why is None]
        try:
            if sound:
                await send(sound, publication)
        except HudError as error:
            for member in sound:
                await self._failed_to_take(member, error)
            found = [why or error for why in found]
        return list(found)

    async def _alive(self, member: Member) -> HudError | None:
        try:
            await member.server.health(self.patience.health)
        except HudError as error:
            self._lose(member, str(error))
            return error
        return None

    async def _given(self, member: Member, publication: Publication) -> HudError | None:
        """Give one server weights; returns why it could not take them."""
        try:
            await member.give(publication)
        except HudError as error:
            await self._failed_to_take(member, error)
            return error
        return None

    async def _failed_to_take(self, member: Member, error: HudError) -> None:
        self._lose(member, str(error))  # With which weights it would go on is not known.
        with suppress(HudError):
            await member.server.resume()

    # -- servers that come and go -------------------------------------------------------------------

    async def _look(self, member: Member) -> None:
        """Look after a server, until cancelled."""
        while True:
            await asyncio.sleep(self.patience.look)
            if member.problem is not None:
                await self._join(member)
                continue
            if member.has is not self.current and not self._publishing:
                # It came while others were given the newest weights.
                self._lose(member, f"{member.server.url} has older weights.")
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
                await member.tidy(self.current)
            except HudError as error:
                self._lose(member, str(error))

    async def _first(
        self, members: Sequence[Member], publication: Publication
    ) -> list[HudError | None]:
        """Give servers that are not drawing yet the weights, and have them draw; returns what was wrong with each."""
        problems = await self._give(members, publication)
        for member, problem in zip(members, problems, strict=True):
            if problem is None:
                member.problem = None
        self._changed.set()
        return problems

    async def _join(self, member: Member) -> None:
        """Take a server in, if it is what it should be."""
        if await self._check(member) is not None:
            return
        publication = self.current
        assert publication is not None
        if publication.transfer is None:
            await self._first([member], publication)
            return

        async def send_alone() -> None:
            if publication is self.current:
                await self._first([member], publication)

        await publication.transfer.still(send_alone)

    async def _check(self, member: Member) -> HudError | None:
        """Ask a server what it is; returns what is wrong with it."""
        member.has = None  # Whatever it had: it may have been started again.
        try:
            await self._ask(member)
        except HudError as error:
            member.problem = str(error)
            return error
        return None

    async def _ask(self, member: Member) -> None:
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
