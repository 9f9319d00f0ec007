"""The `TurnSampler` of a policy that is trained here and sampled by a pool of vLLM servers.

Requests run on an event loop in a separate thread. A sequence whose server is lost continues on another, from the received
tokens: no token is lost or sampled twice.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hud.engine.backends.sampling_servers import ServerSampler
from hud.engine.sample.request import Request, SamplerClosed, Turn, room_after
from hud.engine.sample.token_sampling import Uniforms
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.trace import SamplingParams
from hud_integrations.vllm.completion import Piece, WeightSpan, completion_body
from hud_integrations.vllm.publication import Publication, Publisher, name_of
from hud_integrations.vllm.replica import Replica
from hud_integrations.vllm.replica_pool import ReplicaPool
from hud_integrations.vllm.server import ServerLost, ServerRefused
from hud_integrations.vllm.server_settings import Servers

MOST_ATTEMPTS = 20
"""Maximum attempts of a sequence, after lost servers."""
CLOSE_SECONDS = 10.0

T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class RemoteRequest(Request):
    """A turn that a server samples."""

    drawing: asyncio.Task[None] | None = None
    placed: bool = False
    """True while a server samples it."""


class VllmSampler(ServerSampler):
    """Sampler on servers with the weights of a decoder that is trained in this process."""

    def __init__(
        self, servers: Servers, publisher: Publisher, vocab_size: int, context: int
    ) -> None:
        """No server is contacted before the first `publish`."""
        self._servers = servers
        self._publisher = publisher
        self._vocab_size = vocab_size
        self._context = context
        self._changing = publisher.changing
        self._in_flight = False
        self._version: str | None = None
        self._requests: set[RemoteRequest] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: ReplicaPool | None = None

    @property
    def version(self) -> str | None:
        """The checkpoint whose weights the servers have; None: the base weights."""
        return self._version

    @version.setter
    def version(self, version: str | None) -> None:
        self.publish(version)

    @property
    def load(self) -> int:
        return len(self._requests)

    @property
    def closed(self) -> bool:
        return self._closed

    def queue_length(self) -> int:
        """Return how many sequences wait for a server and are not abandoned."""
        return sum(not request.placed and not request.abandoned for request in list(self._requests))

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        """Set whether weights published within the context continue active turns, or wait for their end.

        The servers have their own copy of the weights: they continue sampling during the change.
        """
        with self._changing:
            before, self._in_flight = self._in_flight, in_flight
            try:
                yield
            finally:
                self._in_flight = before

    def publish(self, version: str | None) -> None:
        """Load the present weights on the servers, under this name. Blocks.

        The first call raises `UsageError` for an unusable server, and `InfrastructureFault` if none answers; later,
        servers that fail to load the weights get no turns until they have them.
        """
        with self._changing:
            publication = self._publisher.publish(version)
            if self._pool is None or self._closed:
                self._open(publication)
            else:
                pool, in_flight = self._pool, self._in_flight
                self._wait_for(pool.publish(publication, in_flight=in_flight))
            self._version = version

    def change_servers(self, urls: tuple[str, ...]) -> None:
        """Replace the servers, while they sample or before they do. Blocks."""
        with self._changing:
            self._servers = replace(self._servers, urls=urls)
            if self._pool is not None and not self._closed:
                self._wait_for(self._pool.change(urls))

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn; see `Sampler.submit`. Raises `SamplerClosed`, `UsageError` for a constraint or no room."""
        loop, pool = self._loop, self._pool
        if self._closed or loop is None or pool is None:
            raise SamplerClosed("The servers of this model are not in use any more.")
        if turn.constraint is not None:
            raise UsageError("vLLM servers are not asked for answers in a fixed form; ask without.")
        context = min(self._context, pool.max_context or self._context)
        if turn.pictures:
            raise UsageError(
                "Prompts with pictures are not sampled by vLLM servers: sample this model on the platform."
            )
        room = room_after(turn.prompt, self._vocab_size, context, "the model's context")
        request = RemoteRequest(
            **vars(turn),
            uniforms=Uniforms(turn.params.seed),
            most=turn.params.most_tokens(room),
            listener=listener,
        )
        request.cancel = partial(self._drop, request)
        self._requests.add(request)
        loop.call_soon_threadsafe(self._begin, request, pool)
        return request

    def _drop(self, request: RemoteRequest) -> None:
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(_cancel, request)

    def revive(self) -> None:
        """Connect again after `close`."""
        if self._closed:
            self.publish(self._version)

    def close(self) -> None:
        """Disconnect; unfinished requests end with `SamplerClosed`."""
        with self._changing:
            if self._closed or self._loop is None:
                self._closed = True
                return
            self._closed = True
            self._stop()

    # -- the thread ---------------------------------------------------------------------------------

    def _open(self, publication: Publication) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hud-vllm", daemon=True)
        self._thread.start()
        # Open connections log warnings when the interpreter shuts down.
        atexit.register(self.close)
        self._pool = ReplicaPool(self._servers)
        self._closed = False
        try:
            self._wait_for(self._pool.open(publication))
        except BaseException:
            self._closed = True
            self._stop()
            raise

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        atexit.unregister(self.close)
        if not thread.is_alive():  # In a forked child.
            return
        self._wait_for(self._end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)
        loop.close()
        self._loop = self._thread = self._pool = None

    async def _end(self) -> None:
        waiting = [request.drawing for request in self._requests if request.drawing is not None]
        for request in list(self._requests):
            self._fail(request, SamplerClosed("The sampler was closed while it was drawing."))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._pool is not None:
            await self._pool.close()

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- one sequence -------------------------------------------------------------------------------

    def _begin(self, request: RemoteRequest, pool: ReplicaPool) -> None:
        if request.abandoned:
            self._requests.discard(request)
            return
        request.drawing = asyncio.create_task(self._draw(request, pool))

    async def _draw(self, request: RemoteRequest, pool: ReplicaPool) -> None:
        try:
            for _ in range(MOST_ATTEMPTS):
                replica = await pool.choose([*request.prompt, *request.token_ids])
                start, epoch = len(request.token_ids), replica.epoch
                reason = await self._attempt(request, replica, pool)
                if reason is not None:
                    pool.drew(replica, [*request.prompt, *request.token_ids])
                    request.end(reason)
                    request.listener()
                    return
                if epoch in replica.doubted:
                    _take_back(request, start)
            raise InfrastructureFault(
                f"{MOST_ATTEMPTS} times a vLLM server broke off while it drew one sequence."
            )
        except InfrastructureFault as error:
            self._fail(request, error)
        except HudError as error:
            self._fail(request, InfrastructureFault(str(error)))
        except Exception as error:
            fault = f"Asking a vLLM server failed: {type(error).__name__}: {error}"
            self._fail(request, InfrastructureFault(fault))
        finally:
            self._requests.discard(request)

    async def _attempt(
        self, request: RemoteRequest, replica: Replica, pool: ReplicaPool
    ) -> str | None:
        """Sample on one server, from the tokens so far; return the finish reason, None if the stream was cut."""
        publication = replica.has
        assert publication is not None
        if not request.token_ids:
            request.version, request.swaps = publication.version, []
        elif publication.version != _newest(request):
            request.swap(publication.version)
        pool.began(replica, request)
        request.placed = True
        epoch, start = replica.epoch, len(request.token_ids)
        try:
            body = _body(request, publication.adapter or replica.model, publication.salt)
            named = replica.names_weights
            if named:
                body["return_weight_versions"] = True
            async with aclosing(replica.server.stream(body)) as pieces:
                async for piece in pieces:
                    if replica.epoch != epoch:
                        return None
                    if any(token >= self._vocab_size for token in piece.token_ids):
                        raise ServerLost(
                            f"The vLLM server {replica.server.url} sampled a token beyond the {self._vocab_size} of the model."
                        )
                    reason = _take(request, piece, first=start == 0)
                    spans = (piece.weights or []) if named else []
                    mistake = _mistake(request, publication.version, start, spans)
                    if mistake is not None:
                        pool.doubt(replica, f"The vLLM server {replica.server.url} {mistake}")
                        return None
                    if request.followed and piece.token_ids:
                        request.listener()
                    if reason is not None:
                        return reason
            return None
        except ServerRefused as error:
            if error.code != 404:
                raise
            await pool.failed(replica, error)
        except ServerLost as error:
            if replica.epoch == epoch:
                await pool.failed(replica, error)
        finally:
            request.placed = False
            pool.ended(replica, request)
        return None

    def _fail(self, request: Request, error: InfrastructureFault) -> None:
        if request.outcome is None:
            request.outcome = error
            request.listener()


def _cancel(request: RemoteRequest) -> None:
    if request.drawing is not None:
        request.drawing.cancel()


def _newest(request: Request) -> str | None:
    return request.swaps[-1][1] if request.swaps else request.version


def _take(request: Request, piece: Piece, *, first: bool) -> str | None:
    """Append received tokens, up to the end of the turn; return the finish reason, if it ended.

    `first`: of the stream that began the turn. Another one's prompt holds sampled tokens, so its cached ones count for nothing.
    """
    if first and piece.cached_tokens is not None:
        request.cached = min(piece.cached_tokens, len(request.prompt))
    for place, token in enumerate(piece.token_ids):
        request.token_ids.append(token)
        if request.top:
            request.likeliest.append(piece.top[place][: request.top])
        # Last: the tokens of a sequence are as many as its logprobs.
        request.logprobs.append(piece.logprobs[place])
        if token in request.stop_ids or (request.stopped and request.stopped(request.token_ids)):
            return "stop"
        if len(request.token_ids) >= request.most:
            return "length"
    if piece.finish_reason in ("stop", "length"):
        return piece.finish_reason
    return None  # `abort`: it continues on another server.


def _mistake(
    request: Request, first: str | None, start: int, spans: Sequence[WeightSpan]
) -> str | None:
    """Compare the weights that a server names for its tokens, from `start` on, with those it should have had.

    `first` are those at the beginning of its stream. Where one took over from another, the server's word counts. Returns the
    mistake, None if there is none.
    """
    if not spans:
        return None
    later = [version for place, version in request.swaps if place >= start]
    left = [first, *([] if start else [request.version]), *later]
    expected = " or ".join(repr(name) for name in dict.fromkeys(map(name_of, left)))
    begins: list[tuple[int, str | None]] = []
    for span in spans:
        while left and name_of(left[0]) != span.name:
            left.pop(0)
        if not left:
            return f"sampled with the weights {span.name!r}, and {expected} had been loaded there."
        begins.append((start + span.start, left[0]))
    if not start:
        request.version = begins[0][1]
    request.swaps = [swap for swap in request.swaps if swap[0] < start]
    for place, version in begins:
        if version != _newest(request):
            request.swaps.append((place, version))
    return None


def _take_back(request: Request, start: int) -> None:
    """Remove the tokens from `start` on. Raises `InfrastructureFault` if they are in use already."""
    if request.followed and len(request.token_ids) > start:
        raise InfrastructureFault(
            "A vLLM server sampled a part of this turn with other weights than had been loaded there."
        )
    del request.token_ids[start:], request.logprobs[start:], request.likeliest[start:]
    request.swaps = [swap for swap in request.swaps if swap[0] < start]


def _body(request: Request, model: str, salt: str) -> dict[str, Any]:
    """Return the completion request for the rest of a turn."""
    params = request.params
    return completion_body(
        model,
        request.ids,
        max_tokens=request.most - len(request.token_ids),
        temperature=params.effective_temperature,
        top_p=params.effective_top_p,
        top_k=params.effective_top_k,
        seed=_seed(params, request.token_ids),
        stop_token_ids=sorted(request.stop_ids),  # `ignore_eos` leaves the end of a turn to these.
        logprobs=request.top,
        # Keys and values of other weights, or of a turn that weights were swapped under, have another salt.
        cache_salt=salt,
    )


def _seed(params: SamplingParams, drawn: Sequence[int]) -> int | None:
    """Return the seed of the remaining tokens: random numbers must not repeat within one sequence."""
    if params.seed is None:
        return None
    if not drawn:
        return params.seed % (1 << 63)
    mixed = hashlib.sha256(f"{params.seed}:{len(drawn)}".encode()).digest()
    return int.from_bytes(mixed[:8], "big") >> 1
