"""The sampler: continuous batching over the decoder and its cache, in a thread of its own.

Requests enter and leave between any two decode steps. A prompt that shares a prefix with something in the cache computes only
its new tokens, and a long one is computed in chunks between decode steps. Where memory is short, the youngest sequences are
preempted and computed again. Works on token ids; text, messages and tools are the policy's.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from hud.engine.cpu_threads import SMALL_PARAMETERS, for_sampling
from hud.engine.decoder import Decoder
from hud.engine.device_memory import TRAINING, OutOfMemory, sentence, within_memory
from hud.engine.sample.adapter_bank import AdapterBank
from hud.engine.sample.kv_cache import CacheSize
from hud.engine.sample.pages import Pages
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
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams

PREFILL_TOKENS = 512
"""Most prompt tokens between two decode steps, where the runner measures none (`Runner.prompt_tokens`)."""
PREFILL_TOKENS_SMALL = 2048
"""The same for a model below `SMALL_PARAMETERS`, whose prompts take little time, and on a GPU."""
DEFAULT_SLOTS = 64
CACHE_BYTES = 2 << 30
"""Default budget of the key-value cache."""
_LESS = f"Lower {TRAINING}, or end other programs on the GPU."


class Sampler:
    """Samples from one decoder. `version` names its weights and is recorded on everything sampled from them."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int = DEFAULT_SLOTS,
        max_context: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        version: str | None = None,
        bank: AdapterBank | None = None,
    ) -> None:
        """`slots`: most active sequences. With `bank`, whose decoder it is, each turn is sampled with its fork's adapter."""
        self.decoder = decoder
        self.version = version
        config, dtype = decoder.config, decoder.dtype
        size = CacheSize.within(cache_bytes, config, dtype, slots=slots, max_context=max_context)
        self.max_context = size.max_context
        runner = runner_type(decoder, bank)
        with within_memory("the sampler's key-value cache", _LESS):
            self.cache = runner.cache_type(config, size, dtype, decoder.device)
        self.prefix_cache = runner.prefix_cache_type(Pages(size.pages), size.page_tokens)
        self.scheduler = Scheduler(self.prefix_cache, slots, packed=runner.packs)
        self._runner = runner(decoder, self.cache, slots, bank)
        self._stale = True
        """True if the weights may have changed since the runner's last `refresh`."""
        self._parameters = sum(parameter.numel() for parameter in decoder.parameters())
        small = self._parameters < SMALL_PARAMETERS or decoder.device.type != "cpu"
        self._prefill_tokens = PREFILL_TOKENS_SMALL if small else PREFILL_TOKENS
        self.steps = 0
        """Forward passes so far."""
        self._changed = threading.Condition()
        self._pauses = [0, 0]
        """Callers in `exclusive`: while there are some, no request is admitted; in flight, no step begins."""
        self._runner.interrupted = lambda: self._closed or self._pauses[True] > 0
        self._runner.deliver = self._deliver
        self._ended: list[Request] | None = None
        """Requests that ended in the middle of a `decode`, which still writes to their pages; None: none is delivered."""
        self._closed = False
        self._retired = False
        self._resting = True
        """True while the thread waits between two steps."""
        self._thread: threading.Thread | None = None

    async def sample(
        self, prompt: list[int], params: SamplingParams, stop_ids: frozenset[int]
    ) -> SampledTurn:
        """Sample one turn after `prompt`; see `submit`."""
        turn = Turn(prompt=prompt, params=params, stop_ids=stop_ids)
        return await wait_for_turn(lambda listener: self.submit(turn, listener))

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn and return its request at once; see `Request.listener`.

        Raises what `check` raises, and `SamplerClosed`.
        """
        room = self.check(turn.prompt)
        request = Request(
            **vars(turn),
            uniforms=Uniforms(turn.params.seed),
            most=turn.params.most_tokens(room),
            listener=listener,
        )
        with self._changed:
            if self.closed:
                raise SamplerClosed("The sampler is closed.")
            self._queue([request])
        return request

    def check(self, prompt: list[int]) -> int:
        """Return how many tokens may follow a prompt; raises what `room_after` raises."""
        size, model_context = self.cache.size, self.decoder.config.max_position_embeddings
        limit = "the model's context"
        if self.max_context == size.pages * size.page_tokens < model_context:
            limit = f"the key-value cache of {self.cache.nbytes / 2**20:,.0f} MiB"
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

    def close(self) -> None:
        """Stop; unfinished requests end with an `InfrastructureFault`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

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
                if placement.copied is not None:
                    self.cache.copy(*placement.copied)
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
        sampled = self._runner.decode(batch)
        if self._ended is not None:
            self._leave_ended()
        self._take(sampled)
        self.steps += max((len(ids) for _, ids, _ in sampled), default=0)

    def _deliver(self, sampled: Sampled) -> None:
        """Take a step's tokens in the middle of a `decode`."""
        if self._ended is None:
            self._ended = []
        self._take(sampled)
        self.steps += 1

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
        request.end(reason)
        if self._ended is not None:
            self._ended.append(request)
        else:
            with self._changed:
                self.scheduler.leave(request)
        if not request.followed:
            request.listener()

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            self._closed = True
            requests = [
                request for request in (*self.active, *self.waiting) if request.outcome is None
            ]
            self.active.clear()
            self.waiting.clear()
            self._changed.notify_all()
        fault = error if isinstance(error, InfrastructureFault) else None
        message = f"The sampler failed: {type(error).__name__}: {error}"
        if isinstance(error, OutOfMemory):
            message = sentence(error, "sampling", _LESS)
        for request in requests:
            request.outcome = fault or InfrastructureFault(message)
            request.listener()
