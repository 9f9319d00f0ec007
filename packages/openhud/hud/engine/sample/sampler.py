"""The sampler: continuous batching over the decoder and its cache, in a thread of its own.

Requests enter and leave between any two decode steps. A prompt that shares a prefix with something in the cache computes only
its new tokens, and a long one is computed in chunks between decode steps. Where memory is short, the youngest sequences are
preempted and computed again. Works on token ids; text, messages and tools are the policy's.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from hud.engine.cpu_threads import SMALL_PARAMETERS, for_sampling
from hud.engine.decoder import Decoder
from hud.engine.device_memory import TRAINING, OutOfMemory, sentence, within_memory
from hud.engine.pictures.placement import check_placed
from hud.engine.sample.adapter_bank import Adapter, AdapterBank
from hud.engine.sample.cache_budget import CacheBudget, budget_of
from hud.engine.sample.kv_cache import CacheSize, most_bytes
from hud.engine.sample.options import CacheFacts, SamplerOptions, most_slots, slots_within
from hud.engine.sample.pages import PageGrowth, Pages
from hud.engine.sample.plain_runner import runner_type
from hud.engine.sample.request import (
    Request,
    SampledTurn,
    SamplerClosed,
    Turn,
    room_after,
    wait_for_turn,
)
from hud.engine.sample.runner import Sampled
from hud.engine.sample.scheduler import PASS_TOKENS, Scheduler
from hud.engine.sample.token_sampling import Uniforms
from hud.errors import InfrastructureFault, UsageError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture

PREFILL_TOKENS = 512
"""Most prompt tokens between two decode steps, where the runner measures none (`Runner.prompt_tokens`)."""
PREFILL_TOKENS_SMALL = 2048
"""The same for a model below `SMALL_PARAMETERS`, whose prompts take little time, and on a GPU."""
_LESS = f"Lower --kv-cache or {TRAINING}, or end other programs on the GPU."
log = logging.getLogger(__name__)


class Sampler:
    """Samples from one decoder. `version` names its weights and is recorded on everything sampled from them."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int | None = None,
        max_context: int | None = None,
        cache_bytes: int | None = None,
        version: str | None = None,
        bank: AdapterBank | None = None,
        budget: CacheBudget | None = None,
    ) -> None:
        """`slots`, `max_context` and `cache_bytes` as in `SamplerOptions`; `budget` replaces that of the decoder's device.

        With `bank`, whose decoder it is, each turn is sampled with its fork's adapter.
        """
        self.decoder = decoder
        self.version = version
        self._options = SamplerOptions(slots, max_context, cache_bytes)
        self._bank = bank
        self._budget = budget or budget_of(decoder.device)
        self._runner_type = runner_type(decoder, bank)
        self._closed = False
        self._failure = ""
        """Reason of the failure that closed it."""
        self._changed = threading.Condition()
        self._pauses = [0, 0]
        """Callers in `exclusive`: while there are some, no request is admitted; in flight, no step begins."""
        if cache_bytes is not None:
            self._open(self._size_within(cache_bytes))
        else:
            most = slots or most_slots(decoder.device.type)
            wanted = most_bytes(decoder.config, decoder.dtype, slots=most, max_context=max_context)
            with self._budget.entering(self, wanted) as share:
                self._open(self._size_within(share))
        self.scheduler = Scheduler(self.prefix_cache, self.slots, packed=self._runner.packs)
        self._parameters = sum(parameter.numel() for parameter in decoder.parameters())
        small = self._parameters < SMALL_PARAMETERS or decoder.device.type != "cpu"
        self._prefill_tokens = PREFILL_TOKENS_SMALL if small else PREFILL_TOKENS
        self.steps = 0
        """Forward passes so far."""
        self._ended: list[Request] | None = None
        """Requests that ended in the middle of a `decode`, which still writes to their pages; None: none is delivered."""
        self._retired = False
        self._resting = True
        """True while the thread waits between two steps."""
        self._thread: threading.Thread | None = None

    def _size_within(self, cache_bytes: int) -> CacheSize:
        config, dtype, options = self.decoder.config, self.decoder.dtype, self._options
        slots = options.slots or most_slots(self.decoder.device.type)
        return CacheSize.within(
            cache_bytes, config, dtype, slots=slots, max_context=options.max_context
        )

    def _open(self, size: CacheSize) -> None:
        """Allocate a cache, and open its runner."""
        decoder, kind = self.decoder, self._runner_type
        tokens = size.pages * size.page_tokens
        self.slots = self._options.slots or slots_within(tokens, decoder.device.type)
        self.max_context = size.max_context
        with within_memory("the sampler's key-value cache", _LESS):
            self.cache = kind.cache_type(decoder.config, size, decoder.dtype, decoder.device)
        self.cache_bytes = self.cache.nbytes
        """Size of all keys and values; on a CPU, the most that they grow to."""
        pages = Pages(size.pages, self._growth(size))
        self.prefix_cache = kind.prefix_cache_type(pages, size.page_tokens, size.states)
        self._runner = kind(decoder, self.cache, self.slots, self._bank)
        self._runner.interrupted = lambda: self._closed or self._pauses[True] > 0
        self._runner.deliver = self._deliver
        self._stale = True
        """True if the weights may have changed since the runner's last `refresh`."""

    def _growth(self, size: CacheSize) -> PageGrowth | None:
        """Return how the cache grows where its size follows from free memory that is taken page by page."""
        budget = self._budget
        if self._options.cache_bytes is not None or not budget.memory.lazy:
            return None
        page = max(1, self.cache.nbytes // (size.pages + 1))
        return PageGrowth(
            first=max(1, budget.first(self.cache.nbytes) // page),
            least=-(-size.max_context // size.page_tokens),
            grows=lambda pages: budget.grows(pages * page),
        )

    @property
    def facts(self) -> CacheFacts:
        """Size of the cache, and what it holds."""
        size = self.cache.size
        tokens = size.pages * size.page_tokens
        return CacheFacts(self.cache_bytes, tokens, self.slots, self.max_context)

    def resize(self, budget: int) -> None:
        """Replace the cache by one of at most `budget` bytes, which must not hold less than a page.

        Active sequences are computed again. Those that the new cache does not hold end: with `length`, or without a sampled
        token with an `InfrastructureFault`.
        """
        with self.exclusive(in_flight=True), self._changed:
            if self._closed:
                return
            try:
                size = self._size_within(budget)
            except UsageError:
                return  # Training fails with the options to lower where it needs this cache's memory.
            self.scheduler.preempt_all()
            self.cache.free()
            self._open(size)
            self.scheduler.prefix_cache, self.scheduler.most = self.prefix_cache, self.slots
            for request in [*self.active, *self.waiting]:
                self._fit(request)
        log.info("A key-value cache was resized: %s.", self.facts)

    def _fit(self, request: Request) -> None:
        """Limit a sequence to the context of the present cache."""
        request.most = min(request.most, self.max_context - len(request.prompt))
        if len(request.token_ids) < request.most:
            return
        if request.token_ids:
            request.end("length")
        else:
            request.outcome = InfrastructureFault(
                f"The prompt has {len(request.prompt)} tokens; beside training, the key-value cache holds {self.max_context}."
            )
        request.abandoned = True
        request.listener()

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        stop_ids: frozenset[int],
        pictures: tuple[Picture, ...] = (),
    ) -> SampledTurn:
        """Sample one turn after `prompt`; see `submit`."""
        turn = Turn(prompt=prompt, pictures=pictures, params=params, stop_ids=stop_ids)
        return await wait_for_turn(lambda listener: self.submit(turn, listener))

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn and return its request at once; see `Request.listener`.

        Raises what `check` raises, and `SamplerClosed`. A sampled picture token ends the turn: no picture belongs to it.
        """
        room = self.check(turn.prompt, turn.pictures)
        stop_ids = turn.stop_ids | self.decoder.picture_tokens
        request = Request(
            **{**vars(turn), "stop_ids": stop_ids},
            uniforms=Uniforms(turn.params.seed),
            most=turn.params.most_tokens(room),
            listener=listener,
        )
        with self._changed:
            if self.closed:
                raise SamplerClosed(self._failure or "The sampler is closed.")
            self._queue([request])
        return request

    def check(self, prompt: list[int], pictures: Sequence[Picture] = ()) -> int:
        """Return how many tokens may follow a prompt; raises what `room_after` and `check_placed` raise."""
        check_placed(prompt, pictures, self.decoder.picture_tokens)
        size, model_context = self.cache.size, self.decoder.config.max_position_embeddings
        limit = "the model's context"
        if self.max_context == size.pages * size.page_tokens < model_context:
            limit = f"the key-value cache of {self.cache_bytes / 2**20:,.0f} MiB"
        return room_after(prompt, self.decoder.config.vocab_size, self.max_context, limit)

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        """Pause sampling for a change of weights, once active sequences have ended or, `in_flight`, between two steps."""
        with self._changed:
            self._pauses[in_flight] += 1
            self._changed.wait_for(
                lambda: self._closed or (self._resting if in_flight else not self.active)
            )
        try:
            yield
        finally:
            with self._changed:
                self._stale = True
                self._pauses[in_flight] -= 1
                self._changed.notify_all()

    def hand_over(self, successor: Sampler, decoder: Decoder) -> None:
        """Finish active sequences with `decoder`, a copy; `successor` takes over the waiting ones."""
        with self.exclusive(in_flight=True), self._changed:
            self.decoder = decoder
            self._runner.use(decoder)
            self._retired = True
            waiting, self.scheduler.waiting = self.scheduler.waiting, deque()
        if waiting:
            successor._queue(waiting)

    @property
    def active(self) -> list[Request]:
        """Admitted sequences, preempted ones included."""
        return self.scheduler.active

    @property
    def waiting(self) -> deque[Request]:
        """Sequences that have not been admitted."""
        return self.scheduler.waiting

    @property
    def closed(self) -> bool:
        """True once no turn is accepted: it was closed, failed, or was replaced by a successor."""
        return self._closed or self._retired

    def queue_length(self) -> int:
        """Return how many waiting sequences are not abandoned."""
        with self._changed:
            return sum(not request.abandoned for request in self.waiting)

    def set_version(self, version: str | None) -> None:
        """Rename the weights after they changed, and drop what the cache holds of the old ones.

        Active sequences (see `exclusive`) keep theirs, and record where the new weights took over.
        """
        with self._changed:
            self.version = version
            self.prefix_cache.forget()
            self._stale = True
            for request in self.active:
                request.swap(version)

    def forget_adapter(self, adapter: Adapter) -> None:
        """Free the cache's pages of an adapter that no request will use again."""
        with self._changed:
            self.prefix_cache.forget_adapter(adapter)

    def close(self) -> None:
        """Stop; unfinished requests end with an `InfrastructureFault`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._budget.leave(self)
        self.cache.free()
        self.cache_bytes = 0

    # -- the thread ---------------------------------------------------------------------------------

    def _queue(self, requests: Iterable[Request]) -> None:
        with self._changed:
            self.waiting.extend(requests)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hud-sampler", daemon=True)
                self._thread.start()
                # A thread inside torch while the interpreter shuts down would abort the process.
                atexit.register(self.close)
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                while self._ready():
                    self._step()
        except BaseException as error:
            self._fail_all(error)
        else:
            self._fail_all(InfrastructureFault("The sampler was closed while it was drawing."))
        atexit.unregister(self.close)

    def _ready(self) -> bool:
        """Wait for work; returns False after the sampler was closed."""
        with self._changed:
            self._resting = True
            if self._pauses[True] or not self.active:
                self._changed.notify_all()  # For `exclusive`.
            self._changed.wait_for(self._due)
            self._resting = False
            if not self.active:
                for_sampling(self._parameters)  # A training pass may have used this thread.
            if self._stale and not self._closed:
                # The weights cannot change before `_changed` is released.
                self._stale = False
                self._runner.refresh()
            return not self._closed and bool(self.active or not self._retired)

    def _due(self) -> bool:
        wanted = self.active or self._retired or (self.waiting and not self._pauses[False])
        return self._closed or bool(wanted and not self._pauses[True])

    def _step(self) -> None:
        """Compute prompts within the budget, then a decode step of all sequences whose prompt is whole."""
        with self._changed:
            for request in [request for request in self.active if request.abandoned]:
                self.scheduler.leave(request)
        if not self.active and not self._runner.warm_up():
            return
        decoding = self.scheduler.decoding
        budget = self._runner.prompt_tokens(self._prefill_tokens) if decoding else PASS_TOKENS
        while count := self._prefill(budget):
            budget -= count
            if self._runner.packs and self.scheduler.decoding:
                break  # All that was ready is in the one pass; another has fixed costs of its own.
        self._decode()

    def _prefill(self, budget: int) -> int:
        """Admit requests and compute prompt chunks; return how many tokens were computed, at most `budget`."""
        with self._changed:
            newcomers = not self._pauses[False] and not self._stale
            for placement in self.scheduler.admit(self.version, newcomers=newcomers):
                self.cache.fill(placement)
            batches = self.scheduler.prefill(budget)
        computed = 0
        for batch in batches:
            count = sum(chunk.count for chunk in batch)
            computed += count
            self.scheduler.prefilled += count
            self._take(self._runner.step(batch))
            self.steps += 1
        return computed

    def _decode(self) -> None:
        """Compute the one token that each sequence lacks, and sample the next, or several."""
        with self._changed:
            batch = self.scheduler.decode()
            if not batch:
                return
            self._runner.reserve(batch, self.scheduler)
        # Of a prompt that was found whole in the cache, the last token is computed here.
        self.scheduler.prefilled += sum(not chunk.request.token_ids for chunk in batch)
        lengths = [len(chunk.request.token_ids) for chunk in batch]
        sampled = self._runner.decode(batch)
        if self._ended is not None:
            self._leave_ended()
        self._take(sampled)
        self.steps += max(
            len(chunk.request.token_ids) - length
            for chunk, length in zip(batch, lengths, strict=True)
        )

    def _deliver(self, sampled: Sampled) -> None:
        """Take tokens in the middle of a `decode`."""
        if self._ended is None:
            self._ended = []
        self._take(sampled)

    def _leave_ended(self) -> None:
        ended, self._ended = self._ended or [], None
        with self._changed:
            for request in ended:
                self.scheduler.leave(request)

    def _take(self, sampled: Sampled) -> None:
        """Append sampled tokens to their requests; a request may end only with the last of them."""
        for request, ids, logprobs in sampled:
            request.token_ids += ids
            request.logprobs += logprobs
            if ids[-1] in request.stop_ids or (
                request.stopped and request.stopped(request.token_ids)
            ):
                self._finish(request, "stop")
            elif len(request.token_ids) >= request.most:
                self._finish(request, "length")
        for listener in {request.listener for request, _, _ in sampled if request.followed}:
            listener()

    def _finish(self, request: Request, reason: str) -> None:
        routes = self.decoder.sampled_routes
        experts = None if routes is None else self.cache.experts_of(request.place)
        if routes is not None and experts is not None:
            routes.put(request.ids, experts)
        request.end(reason)
        if self._ended is not None:
            self._ended.append(request)
        else:
            with self._changed:
                self.scheduler.leave(request)
        if not request.followed:
            request.listener()

    def _fail_all(self, error: BaseException) -> None:
        # `_closed` first: a caller that resizes caches waits for this thread or for that.
        fault = error if isinstance(error, InfrastructureFault) else None
        message = f"The sampler failed: {type(error).__name__}: {error}"
        if isinstance(error, OutOfMemory):
            message = sentence(error, "sampling", _LESS)
        with self._changed:
            self._closed = True
            self._failure = str(fault or message)
            requests = [
                request for request in (*self.active, *self.waiting) if request.outcome is None
            ]
            self.active.clear()
            self.waiting.clear()
            self._changed.notify_all()
        for request in requests:
            request.outcome = fault or InfrastructureFault(message)
            request.listener()
        self._budget.leave(self)
