"""Several vLLM servers of one model: their health, the weights that each has, and the routing of turns.

A server samples only while it has the newest weights; one that was unreachable loads them, and is probed, before it samples
again. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp

from hud.engine.sample.request import Request
from hud.engine.workers.prefix_index import BLOCK, PrefixIndex, block_hashes
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.outbound import guarded_session
from hud_integrations.vllm.publication import Publication
from hud_integrations.vllm.replica import Replica, send
from hud_integrations.vllm.server import Server, ServerBusy, ServerRefused, not_served
from hud_integrations.vllm.server_settings import Servers
from hud_integrations.vllm.weight_agreement import WeightAgreement
from hud_integrations.vllm.weight_files.sender import Node

log = logging.getLogger("hud.vllm")

OLDEST = (0, 16)
"""The first version that reloads weights from another folder and pauses active requests meanwhile."""
TOKENS_SINCE = (0, 33)
"""The first version whose `/inference/v1/generate` streams token ids as numbers, and the names of their weights."""
SLACK = 16
"""Allowed excess of active sequences over the least loaded server's, in addition to a quarter of those."""
SEQUENCE_TOKENS = 512
"""Cached tokens of a prompt that one active sequence outweighs: a shared system prompt must not draw all turns to one server."""
REST_SECONDS = 5.0
"""Time without new requests for a server that refused one, in seconds."""


class ReplicaPool:
    """The vLLM servers of a model."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.patience = servers.patience
        self.replicas: list[Replica] = []
        self.current: Publication | None = None
        """The newest weights."""
        self._prefixes = PrefixIndex()
        self._session: aiohttp.ClientSession | None = None
        self._nodes: dict[str, Node] = {}
        """Receivers of weights, by address."""
        self._changed = asyncio.Event()
        self._agreement = WeightAgreement()
        self._publishing = 0
        self._looking: dict[Replica, asyncio.Task[None]] = {}
        """Health checks."""

    async def open(self, publication: Publication) -> None:
        """Load the weights on every server, and begin health checks.

        Raises `UsageError` for an unusable server (its version, its model), `InfrastructureFault` if none answers.
        """
        self._session = guarded_session(self._servers.reach, read_bufsize=1 << 18)
        self.replicas = [self._replica(url) for url in self._servers.urls]
        self.current = publication
        problems = await asyncio.gather(*(self._check(replica) for replica in self.replicas))
        sound = [
            replica for replica, why in zip(self.replicas, problems, strict=True) if why is None
        ]
        problems += await self._first(sound, publication)
        for problem in problems:
            if isinstance(problem, UsageError):
                raise problem
        if all(replica.problem is not None for replica in self.replicas):
            raise InfrastructureFault(self._unavailable())
        for replica in self.replicas:
            if replica.problem is not None:
                log.warning(
                    "%s It is checked again every %g s.", replica.problem, self.patience.look
                )
        for replica in self.replicas:
            self._looking[replica] = asyncio.create_task(self._look(replica, self.patience.look))

    async def change(self, urls: Sequence[str]) -> None:
        """Replace the servers by those at `urls`; ones that stay go on.

        New ones load the weights before they sample, and sequences of those that go continue elsewhere. A server that
        is unusable counts as lost.
        """
        previous = {replica.server.url: replica for replica in self.replicas}
        self.replicas = [
            previous.pop(url) if url in previous else self._replica(url) for url in urls
        ]
        for replica in previous.values():
            self._put_out(replica, f"{replica.server.url} is no server of this model any more.")
        await _cancelled([self._looking.pop(replica) for replica in previous.values()])
        if previous:
            await self._dissolve()
        for replica in self.replicas:
            if replica not in self._looking:
                self._looking[replica] = asyncio.create_task(self._look(replica, 0.0))

    async def close(self) -> None:
        """End the health checks and close all connections."""
        await _cancelled(self._looking.values())
        await self._dissolve()
        if self._session is not None:
            await self._session.close()

    async def _dissolve(self) -> None:
        """Release every server's side of a weight transfer."""
        if self.current is not None and self.current.transfer is not None:
            await self.current.transfer.release()

    def _replica(self, url: str) -> Replica:
        assert self._session is not None
        return Replica(Server(url, self._session, self._servers.key), self._node(url))

    def _node(self, url: str) -> Node | None:
        """Return the receiver of weights on a server's host."""
        port = self._servers.receiver_port
        if port is None:
            return None
        assert self._session is not None
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        address = f"{parts.scheme}://{host}:{port}"
        return self._nodes.setdefault(address, Node(address, self._session, self._servers.key))

    # -- choosing -----------------------------------------------------------------------------------

    @property
    def max_context(self) -> int | None:
        """Context length that all servers support, in tokens."""
        limits = [
            replica.max_context for replica in self.replicas if replica.max_context is not None
        ]
        return min(limits, default=None)

    async def choose(self, tokens: Sequence[int]) -> Replica:
        """Return the server to continue `tokens` on; waits until one is available.

        Raises `InfrastructureFault` after a time-out, or once every server has refused the weights.
        """
        late = time.monotonic() + self.patience.server
        while True:
            now = time.monotonic()
            loads = {
                replica: len(replica.active)
                for replica in self.replicas
                if replica.problem is None
                and replica.has is self.current
                and replica.resting_until <= now
            }
            if loads:
                return self._warmest(tokens, loads)
            if self._publishing:
                late = now + self.patience.server  # Loading has time-outs of its own.
            elif now > late or self._all_refused():
                raise InfrastructureFault(self._unavailable())
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(1.0, self.patience.look))

    def _all_refused(self) -> bool:
        refused = [replica.refused is self.current for replica in self.replicas]
        return bool(refused) and all(refused)

    def _warmest(self, tokens: Sequence[int], loads: Mapping[Replica, int]) -> Replica:
        """Return the server with the longest cached prefix of `tokens`, less its load in tokens; no overloaded one."""
        least = min(loads.values())
        allowed = [replica for replica, load in loads.items() if load <= least + least // 4 + SLACK]
        hashes = block_hashes(tokens)

        def worth(replica: Replica) -> int:
            cached = min(self._prefixes.length(replica, hashes) * BLOCK, len(tokens))
            return cached - loads[replica] * SEQUENCE_TOKENS

        chosen = max(allowed, key=worth)
        self._prefixes.remember(chosen, hashes)
        return chosen

    def drew(self, replica: Replica, tokens: Sequence[int]) -> None:
        """Record that a server has sampled to the end of `tokens`: its cache holds them."""
        self._prefixes.remember(replica, block_hashes(tokens))

    async def failed(self, replica: Replica, error: HudError) -> None:
        """Record that a sequence failed on a server, and check whether the server is lost."""
        if isinstance(error, ServerBusy):
            replica.resting_until = time.monotonic() + REST_SECONDS
        elif isinstance(error, ServerRefused):
            # The adapter is missing: another process unloaded it, or the server was restarted.
            self._lose(replica, str(error))
        elif replica.problem is None:
            await self._alive(replica)

    def doubt(self, replica: Replica, problem: str) -> None:
        """Record that a server samples with other weights than believed: it loads the newest before it samples again."""
        replica.doubted.add(replica.epoch)
        self._lose(replica, problem)

    # -- weights ------------------------------------------------------------------------------------

    async def publish(self, publication: Publication, *, in_flight: bool) -> None:
        """Load new weights on every reachable server; on others when they are reachable.

        With `in_flight`, active sequences continue with them; otherwise they are finished with the old ones.
        """
        self._publishing += 1
        try:
            replicas = [replica for replica in self.replicas if replica.problem is None]
            await self._place(replicas, publication)
            if publication.adapter is not None:
                await self._give(replicas, publication)
                self.current = publication
                if in_flight:
                    for replica in replicas:
                        replica.break_off()
            else:
                self.current = publication  # From here on no turn starts with the old weights.
                if not in_flight:
                    await self._drained(replicas)
                await self._give(replicas, publication)
            for replica in replicas:
                await replica.tidy(publication)
        finally:
            self._publishing -= 1
            self._changed.set()

    async def _place(self, replicas: Sequence[Replica], publication: Publication) -> None:
        """Send the weights' files ahead, while turns go on; what fails is repeated, and raised, when a server loads them."""
        placed = (replica.place(publication) for replica in replicas if replica.node is not None)
        for problem in await asyncio.gather(*placed, return_exceptions=True):
            if isinstance(problem, BaseException) and not isinstance(problem, HudError):
                raise problem

    async def _drained(self, replicas: Iterable[Replica]) -> None:
        late = time.monotonic() + self.patience.drain
        while any(replica.active for replica in replicas) and time.monotonic() < late:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)

    def began(self, replica: Replica, request: Request) -> None:
        """Count a sequence as active on a server."""
        if not replica.active:
            replica.server.heard = time.monotonic()
        replica.active.add(request)

    def ended(self, replica: Replica, request: Request) -> None:
        """Remove a sequence from a server."""
        replica.active.discard(request)
        if not replica.active:
            self._changed.set()

    async def _give(
        self, replicas: Sequence[Replica], publication: Publication
    ) -> list[HudError | None]:
        """Load weights on servers; return each one's error. A failed server does not sample until it is readmitted."""
        if publication.transfer is None:
            problems = await asyncio.gather(
                *(self._given(replica, publication) for replica in replicas)
            )
        else:
            problems = await self._sent(replicas, publication)
        for replica in replicas:
            self._prefixes.forget(replica)  # Its cache holds keys of other weights.
        return list(problems)

    async def _sent(
        self, replicas: Sequence[Replica], publication: Publication
    ) -> list[HudError | None]:
        """Send tensors to the servers that answer: all of them receive the weights, or none."""
        problems = await asyncio.gather(*(self._alive(replica) for replica in replicas))
        sound = [replica for replica, why in zip(replicas, problems, strict=True) if why is None]
        try:
            if sound:
                await send(sound, publication)
        except HudError as error:
            for replica in sound:
                await self._failed_to_take(replica, error)
            problems = [why or error for why in problems]
        return list(problems)

    async def _alive(self, replica: Replica) -> HudError | None:
        try:
            await replica.server.health(self.patience.health)
        except HudError as error:
            self._lose(replica, str(error))
            return error
        return None

    async def _given(self, replica: Replica, publication: Publication) -> HudError | None:
        """Load weights on one server; return its error."""
        try:
            await replica.give(publication)
        except HudError as error:
            await self._failed_to_take(replica, error)
            return error
        return None

    async def _failed_to_take(self, replica: Replica, error: HudError) -> None:
        self._lose(replica, str(error))  # Its weights are unknown.
        replica.refused = self.current if isinstance(error, UsageError) else None
        with suppress(HudError):
            await replica.server.resume()

    # -- servers that come and go -------------------------------------------------------------------

    async def _look(self, replica: Replica, first: float) -> None:
        """Check a server's health and weights, until cancelled; the first time after `first` seconds."""
        await asyncio.sleep(first)
        while True:
            await self._look_once(replica)
            await asyncio.sleep(self.patience.look)

    async def _look_once(self, replica: Replica) -> None:
        if replica.problem is not None:
            await self._join(replica)
            return
        if replica.has is not self.current and not self._publishing:
            # It joined during the publication of the newest weights.
            self._lose(replica, f"{replica.server.url} has older weights.")
            return
        silent = time.monotonic() - replica.server.heard
        waited_for = replica.active and not replica.changing.locked()
        if waited_for and silent > self.patience.silence:
            self._lose(
                replica,
                f"The vLLM server {replica.server.url} has drawn nothing for {silent:.0f} s.",
            )
            return
        try:
            await replica.server.health(self.patience.health)
            await replica.tidy(self.current)
            # Only while it is idle: it samples nothing until its checksums are computed.
            if not replica.active and not self._publishing:
                await self._agreement.read(replica)
        except HudError as error:
            self._lose(replica, str(error))
        for other, problem in self._agreement.problems(self.replicas, self.current).items():
            self._lose(other, problem)

    async def _first(
        self, replicas: Sequence[Replica], publication: Publication
    ) -> list[HudError | None]:
        """Load the weights on servers that do not sample yet, and admit them; return each one's error."""
        problems = await self._give(replicas, publication)
        for replica, problem in zip(replicas, problems, strict=True):
            if problem is None:
                replica.problem = None
        self._changed.set()
        return problems

    async def _join(self, replica: Replica) -> None:
        """Admit a server, if it is usable."""
        if await self._check(replica) is not None:
            return
        publication = self.current
        assert publication is not None
        if publication.transfer is None:
            await self._first([replica], publication)
            return

        async def send_alone() -> None:
            if publication is self.current:
                await self._first([replica], publication)

        await publication.transfer.still(send_alone)

    async def _check(self, replica: Replica) -> HudError | None:
        """Read a server's version and model; return what makes it unusable."""
        replica.has = None  # It may have been restarted.
        try:
            await self._ask(replica)
        except HudError as error:
            replica.problem = str(error)
            replica.refused = None
            return error
        return None

    async def _ask(self, replica: Replica) -> None:
        server = replica.server
        try:
            version = await server.version()
            cards = await server.models()
        except ServerRefused as error:
            raise not_served(server.url, error) from error
        number = re.match(r"(\d+)\.(\d+)", version)
        release = None if number is None else (int(number[1]), int(number[2]))
        if release is not None and release < OLDEST:
            raise UsageError(
                f"The vLLM server {server.url} is of version {version}; {'.'.join(map(str, OLDEST))} is the oldest that "
                "does what training needs. Upgrade it: pip install -U vllm"
            )
        bases = [card for card in cards if card.parent is None]
        if not bases:
            raise UsageError(f"The vLLM server {server.url} serves no model.")
        replica.model, replica.max_context = bases[0].name, bases[0].max_context
        if release is not None and release >= TOKENS_SINCE:
            await server.find_endpoint()

    def _lose(self, replica: Replica, problem: str) -> None:
        if replica.problem is None:
            log.error("%s It is checked again every %g s.", problem, self.patience.look)
        self._put_out(replica, problem)

    def _put_out(self, replica: Replica, problem: str) -> None:
        replica.problem = problem
        replica.has = replica.refused = None
        self._prefixes.forget(replica)
        replica.break_off()
        self._changed.set()

    def _unavailable(self) -> str:
        reasons = " ".join(
            replica.problem or f"{replica.server.url} is busy." for replica in self.replicas
        )
        cure = "Start one, or sample here again: hud models vllm MODEL --off."
        return f"No vLLM server can sample now. {reasons} {cure}"


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
