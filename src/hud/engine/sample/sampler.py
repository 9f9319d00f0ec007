"""The sampler: continuous batching over the decoder and its cache, in a thread of its own.

Requests come and go between any two decode steps, or a few of a small model's. A prompt that begins as something in the
cache does pays only for its new tokens, and a long one is computed in parts, between the others' tokens. Where memory is
short, the youngest wait and are computed again. It knows token ids; text, messages and tools are the policy's.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from hud.engine.acceleration import runner_type
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.engine.sample.pages import Pages
from hud.engine.sample.request import Asked, Drawn, Request, SamplerClosed, wait_for_turn
from hud.engine.sample.scheduler import PASS_TOKENS, SamplerStatistics, Schedule
from hud.engine.sample.slots import Slots
from hud.engine.sample.token_sampling import Uniforms, likeliest_tokens
from hud.engine.threads import SMALL_PARAMETERS, for_sampling
from hud.errors import ContextOverflow, InfrastructureFault, UsageError
from hud.trace import SamplingParams

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank

CHUNK_TOKENS = 512
"""Most prompt tokens between two decode steps, while others draw."""
CHUNK_TOKENS_SMALL = 2048
"""The same for a model below `SMALL_PARAMETERS`, whose prompts are computed in no time, and on a GPU."""
AT_ONCE = 8
"""Most tokens that a sequence draws before the sampler looks up: for requests, weights, and who gave up."""
AT_ONCE_SECONDS = 0.01
"""How long that may take."""
DEFAULT_SLOTS = 64
CACHE_BYTES = 2 << 30
"""Default budget of the key-value cache."""


class Sampler:
    """Draws from one decoder. `version` names its weights and stands on everything drawn from them."""

    def __init__(
        self,
        decoder: AnyDecoder,
        *,
        slots: int = DEFAULT_SLOTS,
        max_context: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        version: str | None = None,
        bank: AdapterBank | None = None,
    ) -> None:
        """With `bank`, whose decoder it is, each turn is drawn with the adapter of its fork."""
        self.decoder = decoder
        self.version = version
        runner = runner_type(decoder, bank)
        size = CacheSize.within(
            cache_bytes,
            decoder.config,
            decoder.dtype,
            slots=slots,
            max_context=max_context,
            tables=runner.page_tables,
        )
        self.max_context = size.max_context
        self.cache = KVCache(decoder.config, size, decoder.dtype, decoder.device)
        self.slots = Slots(Pages(size.pages), size.page_tokens)
        self._schedule = Schedule(self.slots, slots)
        self._runner = runner(decoder, self.cache, slots, bank)
        self._stale = True
        """True where the weights may have changed since the runner last looked at them."""
        self._parameters = sum(parameter.numel() for parameter in decoder.parameters())
        small = self._parameters < SMALL_PARAMETERS or decoder.device.type != "cpu"
        self._chunk = CHUNK_TOKENS_SMALL if small else CHUNK_TOKENS
        self.steps = 0
        """Forward passes so far."""
        self._pace = AT_ONCE_SECONDS, 1
        """Seconds of the last decode step, and its sequences."""
        self._changed = threading.Condition()
        self._paused = 0
        self._closed = False
        self._retired = False
        self._held = 0
        self._resting = True
        """True while the thread is between two steps and waits."""
        self._thread: threading.Thread | None = None

    async def sample(
        self, prompt: list[int], params: SamplingParams, stop_ids: frozenset[int]
    ) -> Drawn:
        """Draw one turn after `prompt`; see `submit`."""
        asked = Asked(prompt=prompt, params=params, stop_ids=stop_ids)
        return await wait_for_turn(lambda listener: self.submit(asked, listener))

    def submit(self, asked: Asked, listener: Callable[[], None]) -> Request:
        """Queue one turn and return it at once; `listener` hears when there is something to see.

        Raises what `check` raises.
        """
        room = self.check(asked.prompt)
        request = Request(
            **vars(asked),
            uniforms=Uniforms(asked.params.seed),
            most=asked.params.most_tokens(room),
            listener=listener,
        )
        with self._changed:
            if self.closed:
                raise SamplerClosed("The sampler is closed.")
            self._schedule.waiting.append(request)
            self._start()
            self._changed.notify_all()
        return request

    def check(self, prompt: list[int]) -> int:
        """Return how many tokens may follow a prompt.

        Raises `ContextOverflow` for one that leaves no room in the context, `UsageError` for one that holds what is no
        token.
        """
        if not prompt:
            raise UsageError("The prompt is empty.")
        size = self.decoder.config.vocab_size
        if min(prompt) < 0 or max(prompt) >= size:
            # One such row would take the whole batch down with it.
            wrong = next(token for token in prompt if not 0 <= token < size)
            raise UsageError(
                f"The prompt holds the token id {wrong}; the model knows {size} tokens."
            )
        room = self.max_context - len(prompt)
        if room <= 0:
            raise ContextOverflow(
                f"The prompt has {len(prompt)} tokens; {self._limit()} holds {self.max_context}."
            )
        return room

    def _limit(self) -> str:
        """Return what it is that bounds a conversation."""
        size = self.cache.size
        known = self.decoder.config.max_position_embeddings
        if not size.whole and self.max_context == size.pages * size.page_tokens < known:
            held = self.cache.keys.nbytes + self.cache.values.nbytes
            return f"the key-value cache of {held / 2**20:,.0f} MiB"
        return "the model's context"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep the sampler still: what is in flight ends first, what comes waits. For changing weights."""
        with self._changed:
            self._paused += 1
            self._changed.wait_for(lambda: not self.active or self._closed)
        try:
            yield
        finally:
            with self._changed:
                self._stale = True
                self._paused -= 1
                self._changed.notify_all()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Keep the sampler still between two decode steps; what is in flight goes on afterwards, as it is."""
        with self._changed:
            self._held += 1
            self._changed.wait_for(lambda: self._resting or self._closed)
        try:
            yield
        finally:
            with self._changed:
                self._stale = True
                self._held -= 1
                self._changed.notify_all()

    def hand_over(self, successor: Sampler, decoder: AnyDecoder) -> None:
        """Draw what is in flight to its end with `decoder`, a copy; whoever waits is drawn by `successor`."""
        with self.between_steps(), self._changed:
            self.decoder = decoder
            self._runner.use(decoder)
            self._retired = True
            waiting, self._schedule.waiting = self._schedule.waiting, deque()
        if waiting:
            with successor._changed:
                successor._schedule.waiting.extend(waiting)
                successor._start()
                successor._changed.notify_all()

    @property
    def active(self) -> list[Request]:
        """Sequences on their way, those among them that were preempted, too."""
        return self._schedule.active

    @property
    def waiting(self) -> deque[Request]:
        """Sequences that have not begun."""
        return self._schedule.waiting

    def statistics(self) -> SamplerStatistics:
        """Return what was done so far, and how much of the cache is in use."""
        return self._schedule.statistics(self.cache)

    @property
    def closed(self) -> bool:
        """True once it takes no more: it was closed, it failed, or another has taken over."""
        return self._closed or self._retired

    def queue_length(self) -> int:
        """Return how many sequences wait that somebody still wants."""
        with self._changed:
            if any(request.abandoned for request in self.waiting):
                wanted = deque(one for one in self.waiting if not one.abandoned)
                self._schedule.waiting = wanted
            return len(self.waiting)

    def set_version(self, version: str | None) -> None:
        """Name the weights anew, after they changed; keys and values of the old ones are forgotten.

        Sequences in flight (see `between_steps`) keep theirs, and it is written down where the new weights took over.
        """
        with self._changed:
            self.version = version
            self.slots.forget()
            self._stale = True
            for request in self.active:
                request.swap(version)

    def close(self) -> None:
        """Stop; whoever waits is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hud-sampler", daemon=True)
            self._thread.start()
            # A thread inside torch while the interpreter is taken apart would abort the process.
            atexit.register(self.close)

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
        """Wait until there is something to do; False once there never will be again."""
        with self._changed:
            self._resting = True
            if self._held or not self.active:
                self._changed.notify_all()  # Somebody may wait for stillness.
            self._changed.wait_for(self._due)
            self._resting = False
            if not self.active:
                for_sampling(self._parameters)  # A training pass may have been here meanwhile.
            if self._stale and not self._closed:
                # Nobody changes the weights before `_changed` is free.
                self._stale = False
                self._runner.refresh()
            return not self._closed and bool(self.active or not self._retired)

    def _due(self) -> bool:
        wanted = self.active or self._retired or (self.waiting and not self._paused)
        return self._closed or bool(wanted and not self._held)

    def _step(self) -> None:
        """Go on with prompts, as far as others do not wait too long for it, and draw a token for everybody else."""
        with self._changed:
            for request in [one for one in self.active if one.abandoned]:
                self._schedule.leave(request)
        budget = self._chunk if self._schedule.drawing else PASS_TOKENS
        while count := self._prefill(budget):
            budget -= count
        self._decode()

    def _prefill(self, budget: int) -> int:
        """Admit whom there is room for and go on with prompts; return how many tokens were computed, at most `budget`."""
        with self._changed:
            newcomers = not self._paused and not self._stale
            for placement in self._schedule.admit(self.version, newcomers=newcomers):
                if placement.copied is not None:
                    self.cache.copy(*placement.copied)
            batches = self._schedule.prefill(budget)
        computed = 0
        for batch in batches:
            whole, hidden = self._runner.prefill(batch)
            count = sum(one.count for one in batch)
            self._schedule.counts.prefilled += count
            computed += count
            self._draw(whole, hidden)
            self.steps += 1
        return computed

    def _decode(self) -> None:
        """Compute the one token that each sequence lacks, and draw the next, or some."""
        with self._changed:
            batch = self._schedule.decode()
            if not batch:
                return
            count = 0
            if self._runner.several_tokens:
                count = self._schedule.tokens_at_once(batch, self._most_at_once(len(batch)))
            hurried = bool(self._schedule.waiting)
        # Of a prompt that was found whole, the last token is computed here.
        self._schedule.counts.prefilled += sum(not request.token_ids for request in batch)
        began, before = perf_counter(), self.steps
        if count:
            found = self._runner.sample_ahead(batch, count, until_end=hurried)
            for request, (ids, logprobs) in zip(batch, found, strict=True):
                self._take(request, ids, logprobs)
            self._tell(batch)
            self.steps += max(len(ids) for ids, _ in found)
        else:
            self._draw(*self._runner.decode(batch))
            self.steps += 1
        self._pace = (perf_counter() - began) / (self.steps - before), len(batch)

    def _most_at_once(self, sequences: int) -> int:
        """Return how many tokens so many sequences may draw before the sampler looks up."""
        seconds, before = self._pace
        return min(AT_ONCE, int(AT_ONCE_SECONDS / (seconds * max(1.0, sequences / before))))

    def _draw(self, batch: list[Request], hidden: torch.Tensor) -> None:
        """Draw a token for each of some sequences from their last hidden states (B, H)."""
        if not batch:
            return
        logits = self._runner.logits(hidden)
        for row, request in enumerate(batch):
            if request.constraint is not None:
                request.constraint.allow(logits[row])
        ids, logprobs = self._runner.sample(logits, batch)
        if any(request.top for request in batch):
            params = [request.params for request in batch]
            for request, likeliest in zip(
                batch, likeliest_tokens(logits, params, max(r.top for r in batch)), strict=True
            ):
                request.likeliest.append(likeliest[: request.top])
        for request, token, logprob in zip(batch, ids, logprobs, strict=True):
            if request.constraint is not None:
                request.constraint.take(token)
            self._take(request, [token], [logprob])
        self._tell(batch)

    def _tell(self, batch: list[Request]) -> None:
        """Let those hear of a token who follow their sequences."""
        for listener in {request.listener for request in batch if request.followed}:
            listener()

    def _take(self, request: Request, ids: list[int], logprobs: list[float]) -> None:
        """Write down what a sequence drew; only with the last token may it end."""
        request.token_ids += ids
        request.logprobs += logprobs
        if ids[-1] in request.stop_ids or (request.stopped and request.stopped(request.token_ids)):
            self._finish(request, "stop")
        elif len(request.token_ids) >= request.most:
            self._finish(request, "length")

    def _finish(self, request: Request, reason: str) -> None:
        request.end(reason)
        with self._changed:
            self._schedule.leave(request)
        if not request.followed:
            request.listener()

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            self._closed = True
            requests = [*self.active, *self.waiting]
            self.active.clear()
            self.waiting.clear()
            self._changed.notify_all()
        fault = error if isinstance(error, InfrastructureFault) else None
        for request in requests:
            request.outcome = fault or InfrastructureFault(
                f"The sampler failed: {type(error).__name__}: {error}"
            )
            request.listener()
