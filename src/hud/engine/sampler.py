"""The sampler: continuous batching over the decoder and its cache, in a thread of its own.

Requests come and go between any two decode steps. A prompt that begins as some slot's content does pays only
for its new tokens. It knows token ids; text, messages and tools are the policy's.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hud.engine.drawing import Uniforms, draw, likeliest_tokens
from hud.engine.fairness import take_turn
from hud.engine.kvcache import KVCache
from hud.engine.sequence import Asked, Drawn, Request, SamplerClosed, wait_for_turn
from hud.engine.slots import Placement, Slots
from hud.engine.threads import for_sampling
from hud.errors import ContextOverflow, InfrastructureFault, UsageError
from hud.trace import SamplingParams

if TYPE_CHECKING:
    from hud.engine.folder import AnyDecoder

PREFILL_TOKENS = 8192
"""Most prompt tokens, padding included, in one prefill pass."""
DEFAULT_SLOTS = 64
CACHE_BYTES = 2 << 30
"""Default budget of the key-value cache: fewer slots rather than more memory."""


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
    ) -> None:
        self.decoder = decoder
        self.version = version
        self.max_context = max_context or decoder.config.max_position_embeddings
        # One position more than a conversation can have: idle rows of a batch write there.
        length = self.max_context + 1
        each = KVCache.bytes_for(decoder.config, 1, length, decoder.dtype)
        if each > cache_bytes:
            raise UsageError(
                f"One conversation of {self.max_context} tokens needs {each / 2**20:,.0f} MiB of key-value cache; "
                f"the budget is {cache_bytes / 2**20:,.0f} MiB. Lower max_context, or raise the budget."
            )
        count = max(1, min(slots, cache_bytes // each))
        self.cache = KVCache(decoder.config, count, length, decoder.dtype, decoder.device)
        self.slots = Slots(count)
        self._parameters = sum(parameter.numel() for parameter in decoder.parameters())
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        self.steps = 0
        """Forward passes so far."""
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
            most=min(asked.params.max_tokens, room),
            listener=listener,
        )
        with self._changed:
            if self.closed:
                raise SamplerClosed("The sampler is closed.")
            self.waiting.append(request)
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
                f"The prompt has {len(prompt)} tokens; the model's context holds {self.max_context}."
            )
        return room

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
                self._held -= 1
                self._changed.notify_all()

    def hand_over(self, successor: Sampler, decoder: AnyDecoder) -> None:
        """Draw what is in flight to its end with `decoder`, a copy; whoever waits is drawn by `successor`."""
        with self.between_steps(), self._changed:
            self.decoder = decoder
            self._retired = True
            waiting, self.waiting = self.waiting, deque()
        if waiting:
            with successor._changed:
                successor.waiting.extend(waiting)
                successor._start()
                successor._changed.notify_all()

    @property
    def closed(self) -> bool:
        """True once it takes no more: it was closed, it failed, or another has taken over."""
        return self._closed or self._retired

    @property
    def busy(self) -> bool:
        """True while sequences are on their way, or wait."""
        return bool(self.active or self.waiting)

    def queue_length(self) -> int:
        """Return how many sequences wait that somebody still wants."""
        with self._changed:
            if any(request.abandoned for request in self.waiting):
                self.waiting = deque(one for one in self.waiting if not one.abandoned)
            return len(self.waiting)

    def set_version(self, version: str | None) -> None:
        """Name the weights anew, after they changed; keys and values of the old ones are forgotten.

        Sequences in flight (see `between_steps`) keep theirs, and it is written down where the new weights took over.
        """
        with self._changed:
            self.version = version
            self.slots.forget()
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
            return not self._closed and bool(self.active or not self._retired)

    def _due(self) -> bool:
        wanted = self.active or self._retired or (self.waiting and not self._paused)
        return self._closed or bool(wanted and not self._held)

    def _step(self) -> None:
        self._drop_abandoned()
        while wave := self._admit():
            self._prefill(wave)
        if self.active:
            self._decode()

    def _drop_abandoned(self) -> None:
        gone = [request for request in self.active if request.abandoned]
        for request in gone:
            self._leave(request)

    def _admit(self) -> list[tuple[Request, Placement]]:
        """Give slots to waiting requests. Those with equal prompts come one wave later, and copy."""
        wave: list[tuple[Request, Placement]] = []
        prompts: set[tuple[int, ...]] = set()
        later: list[Request] = []
        with self._changed:
            while self.waiting and not self._paused and self.slots.free:
                request = take_turn(self.waiting, self.active)
                key = tuple(request.prompt)
                if request.abandoned:
                    continue
                if key in prompts:
                    later.append(request)
                    continue
                prompts.add(key)
                wave.append((request, self.slots.place(request.prompt)))
                self.active.append(request)
            self.waiting.extendleft(reversed(later))
        return wave

    def _prefill(self, wave: list[tuple[Request, Placement]]) -> None:
        """Compute what the slots lack of the prompts, rows of like length together, and draw first tokens."""
        for request, placement in wave:
            if placement.source is not None:
                self.cache.copy(placement.source.index, placement.slot.index, placement.cached)
            request.slot, request.cached = placement.slot, placement.cached
            request.version = self.version
            # Not the request's until it is computed: a later wave may not copy from it before.
            placement.slot.tokens = request.prompt[: placement.cached]
        rows = sorted(
            (request for request, _ in wave), key=lambda one: len(one.prompt) - one.cached
        )
        while rows:
            width = len(rows[-1].prompt) - rows[-1].cached
            count = max(1, PREFILL_TOKENS // width)
            batch, rows = rows[-count:], rows[:-count]
            self._prefill_batch(batch, width)

    def _prefill_batch(self, batch: list[Request], width: int) -> None:
        device = self.decoder.device
        new = [request.prompt[request.cached :] for request in batch]
        ids = torch.tensor([row + [0] * (width - len(row)) for row in new], device=device).view(-1)
        starts = torch.tensor([request.cached for request in batch], device=device)
        slots = torch.tensor([request.place.index for request in batch], device=device)
        longest = max(len(request.prompt) for request in batch)
        self.cache.aim(slots, starts, width, longest)
        positions = (starts[:, None] + torch.arange(width, device=device)).view(-1)
        hidden = self.decoder.hidden_cached(ids, positions, self.cache)
        last = torch.tensor(
            [row * width + len(tokens) - 1 for row, tokens in enumerate(new)], device=device
        )
        self.steps += 1
        for request in batch:
            request.place.tokens = list(request.prompt)
        self._draw(batch, self.decoder.logits(hidden[last]))

    def _decode(self) -> None:
        """Compute one token for each active sequence, and draw the next."""
        device = self.decoder.device
        batch = sorted(self.active, key=lambda request: request.place.index)
        count = batch[-1].place.index + 1
        # Every row up to the last busy one, so that the cache is read where it lies; idle rows draw nothing.
        ids = [0] * count
        starts = [len(slot.tokens) for slot in self.slots.all[:count]]
        for request in batch:
            ids[request.place.index] = request.token_ids[-1]
        start = torch.tensor(starts, device=device)
        longest = max(len(request.place.tokens) for request in batch) + 1
        self.cache.aim(torch.arange(count, device=device), start, 1, longest)
        hidden = self.decoder.hidden_cached(torch.tensor(ids, device=device), start, self.cache)
        self.steps += 1
        for request in batch:
            request.place.tokens.append(request.token_ids[-1])
        rows = [request.place.index for request in batch]
        if len(rows) < count:
            hidden = hidden[torch.tensor(rows, device=device)]
        self._draw(batch, self.decoder.logits(hidden))

    def _draw(self, batch: list[Request], logits: torch.Tensor) -> None:
        params = [request.params for request in batch]
        for row, request in enumerate(batch):
            if request.constraint is not None:
                request.constraint.allow(logits[row])
        ids, logprobs = draw(logits, params, [request.uniforms.next() for request in batch])
        if any(request.top for request in batch):
            for request, likeliest in zip(
                batch, likeliest_tokens(logits, params, max(r.top for r in batch)), strict=True
            ):
                request.likeliest.append(likeliest[: request.top])
        for request, token, logprob in zip(batch, ids, logprobs, strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            if request.constraint is not None:
                request.constraint.take(token)
            if token in request.stop_ids or (
                request.stopped and request.stopped(request.token_ids)
            ):
                self._finish(request, "stop")
            elif len(request.token_ids) >= request.most:
                self._finish(request, "length")
        for listener in {request.listener for request in batch if request.followed}:
            listener()

    def _finish(self, request: Request, reason: str) -> None:
        request.outcome = Drawn(
            request.token_ids,
            request.logprobs,
            reason,
            request.cached,
            request.version,
            # One that came after the last token drew nothing.
            [swap for swap in request.swaps if swap[0] < len(request.token_ids)],
        )
        self._leave(request)
        if not request.followed:
            request.listener()

    def _leave(self, request: Request) -> None:
        with self._changed:
            self.active.remove(request)
            self.slots.release(request.place)

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
