"""Sampling clients: sequences and logprobs of a model at a checkpoint, as tokens.

The id of a sampling client names its weights, so it is valid on every server of the store and after a restart.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from hud.engine.chat.conversation_pictures import PromptIds
from hud.errors import NotFoundError, OverloadedError, UsageError
from hud.inference.dialects.conversation_parts import MOST_STOPS
from hud.learning.datum_calls import PromptScores, ScoreRequest
from hud.trace import SamplingParams
from hud_integrations.tinker.service import checkpoint_paths as paths
from hud_integrations.tinker.service.base_models import base_named
from hud_integrations.tinker.service.futures import PROTOBUF, Answer
from hud_integrations.tinker.service.image_chunks import expanded
from hud_integrations.tinker.service.prompt_scoring import score_request, with_scores
from hud_integrations.tinker.service.wire.messages import Sampled, SampledSequence, write_sampled
from hud_integrations.tinker.service.wire.requests import Sample
from hud_platform.gateway.chat_formats import Format, format_of
from hud_platform.gateway.ledger import Meter
from hud_platform.gateway.stopping import StopScanner
from hud_platform.models.records import BASE, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.serving.token_engine import (
    EngineDownError,
    TokenDelta,
    TokenEnd,
    TokenEngine,
    TokenRequest,
)

MOST_TOP = 20
MOST_DRAWS = 64
"""Draws at each position of a prompt."""
MOST_ALTERNATIVES = 1 << 22
"""Most likely tokens, draws and scored tokens of all positions of a prompt together, which are held as lists."""
MOST_AT_ONCE = 512
"""Sequences that are sampled at once; further ones wait, where the engine would refuse them."""
MOST_TOKENS = 1 << 31
"""Ids of tokens are below it."""
MOST_SAMPLED_BYTES = 256 << 20
"""Size of the sequences of a team's requests that run, together."""
_TOKEN_BYTES, _ALTERNATIVE_BYTES = 16, 128
"""Memory of a sampled token, and of each of its most likely tokens."""
PATIENCE_SECONDS = 300.0
"""Longest wait for an engine that is full, or restarts."""
CACHE_SECONDS = 1.0
"""Time for which a model's record is used that was read for an earlier request of the same sampling client."""
HEAD = "head"


@dataclass(frozen=True)
class Sampler:
    """A model and the weights that sample."""

    model: ModelRecord
    checkpoint: str
    """An id, `base`, or `head`: the model's weights of the moment."""

    @property
    def path(self) -> str | None:
        """The path of its checkpoint; None for base weights."""
        if self.checkpoint == BASE:
            return None
        return f"{paths.SCHEME}{self.model.name}/sampler_weights/{self.checkpoint}"


@dataclass
class _Sequence:
    tokens: array[int] = field(default_factory=lambda: array("q"))
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    stopped: bool = False
    cached: int = 0
    pure: bool = True
    """False if other weights than the sampler's sampled a token."""


class _Room:
    """Memory of one request's sequences, counted with those of its team's other requests that run."""

    def __init__(self, sampled: Counter[str], team: str) -> None:
        self.team = team
        self._sampled, self._size = sampled, 0

    def take(self, tokens: int, top: Sequence[Sequence[object]] | None) -> None:
        """Count tokens and their most likely tokens. Raises `UsageError` where the team's sequences are too large together."""
        size = tokens * _TOKEN_BYTES + sum(map(len, top or ())) * _ALTERNATIVE_BYTES
        self._size += size
        self._sampled[self.team] += size
        if self._sampled[self.team] > MOST_SAMPLED_BYTES:
            raise UsageError(
                f"The sequences of your team's requests that run take more than {MOST_SAMPLED_BYTES >> 20} MiB. Sample fewer "
                "at once, shorter ones, or with fewer topk_sample_logprobs."
            )

    def leave(self) -> None:
        """End the count."""
        self._sampled[self.team] -= self._size
        if not self._sampled[self.team]:
            del self._sampled[self.team]


@dataclass(frozen=True)
class _Call:
    """One sequence to be sampled."""

    sampler: Sampler
    request: TokenRequest
    form: Format
    stops: tuple[str, ...]
    room: _Room
    meter: Meter


def sampler_of(registry: Registry, identifier: str) -> Sampler:
    """Return the sampler of an id. Raises `NotFoundError`."""
    parts = identifier.split(":")
    if len(parts) != 5 or parts[1] != "sample":
        raise NotFoundError(f"There is no sampling client {identifier!r}.")
    model, checkpoint = registry.model(parts[3]), parts[4]
    named = checkpoint in (BASE, HEAD, model.config.origin_checkpoint)
    # An id is the caller's text: the checkpoints of other models are none of this one's.
    if not named and registry.tree.get(checkpoint).model_id != model.id:
        raise NotFoundError(f"There is no checkpoint {checkpoint!r}.")
    return Sampler(model, checkpoint)


def sampler_of_model(
    registry: Registry, *, base_model: str | None, model_path: str | None
) -> Sampler:
    """Return the sampler of a path, or of a model at its present head. Raises `UsageError` for a provider's model."""
    if model_path is not None:
        model, checkpoint = paths.resolve(registry, model_path)
    elif base_model is not None:
        model = base_named(registry, base_model)
        checkpoint = model.head_checkpoint_id
    else:
        raise UsageError("A sampling client needs a base_model or a model_path.")
    registry.weights(model, checkpoint)
    return Sampler(model, checkpoint or BASE)


class SamplingClients:
    """Samples for every team."""

    def __init__(self, engine: Callable[[], TokenEngine], is_ahead: Callable[[str], bool]) -> None:
        """`is_ahead`: True for a model whose weights in training are newer than its head."""
        self._engine = engine
        self._is_ahead = is_ahead
        self._places: dict[str, asyncio.Semaphore] = {}
        """Places for sequences of each model, by its id."""
        self._sampled: Counter[str] = Counter()
        """Bytes of the sequences of requests that run, by team."""
        self._found: dict[tuple[str | None, str], tuple[float, Sampler]] = {}
        """Samplers of ids that were looked up lately, with the time of that."""

    async def find(self, registry: Registry, identifier: str) -> Sampler:
        """Return the sampler of an id, at most `CACHE_SECONDS` old. Raises `NotFoundError`."""
        key, now = (registry.team, identifier), time.monotonic()
        at, sampler = self._found.get(key, (0.0, None))
        if sampler is None or now - at > CACHE_SECONDS:
            sampler = await asyncio.to_thread(sampler_of, registry, identifier)
            self._found = {
                identity: entry
                for identity, entry in self._found.items()
                if now - entry[0] <= CACHE_SECONDS
            }
            self._found[key] = (now, sampler)
        return sampler

    async def sample(self, sampler: Sampler, body: Sample, tenant: str, meter: Meter) -> Answer:
        """Return sampled sequences, with logprobs of the prompt where they were requested.

        `meter` has the tokens of the answer; until its end, those that were computed and sampled so far.
        """
        _refuse(body)
        meter.checkpoint = None if sampler.checkpoint in (BASE, HEAD) else sampler.checkpoint
        request = await asyncio.to_thread(score_request, body)
        form = await asyncio.to_thread(format_of, sampler.model.folder)
        prompt = await asyncio.to_thread(expanded, body.prompt.inputs, form.chat)
        room = _Room(self._sampled, tenant)
        try:
            drawn = await self._sequences(sampler, form, prompt, body, room, meter)
        finally:
            room.leave()
        sequences = [
            SampledSequence(
                sequence.tokens,
                sequence.logprobs,
                sequence.stopped,
                sequence.top if body.topk_sample_logprobs else None,
            )
            for sequence in drawn
        ]
        cached = min(sequence.cached for sequence in drawn)
        sampled = Sampled(sequences, cached)
        if request is not None:
            scores = await self._scores(sampler, request)
            sampled = await asyncio.to_thread(with_scores, sampled, body, scores)
        meter.prompt_tokens = len(prompt) * len(drawn)
        meter.completion_tokens = sum(len(sequence.tokens) for sequence in drawn)
        meter.cached_tokens = sum(sequence.cached for sequence in drawn)
        return Answer(write_sampled(sampled), PROTOBUF)

    async def _sequences(
        self,
        sampler: Sampler,
        form: Format,
        prompt: PromptIds,
        body: Sample,
        room: _Room,
        meter: Meter,
    ) -> list[_Sequence]:
        """Sample all sequences of a request. One that has no place yet takes no memory."""
        places = self._places.setdefault(sampler.model.id, asyncio.Semaphore(MOST_AT_ONCE))
        tasks: list[asyncio.Task[_Sequence]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(body.num_samples):
                    await places.acquire()
                    request = _request(
                        form, prompt, body, number, room.team, counted=meter.budget is not None
                    )
                    stops = body.sampling_params.text_stops
                    call = _Call(sampler, request, form, stops, room, meter)
                    task = group.create_task(self._patient(call))
                    task.add_done_callback(lambda _: places.release())
                    tasks.append(task)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _patient(self, call: _Call) -> _Sequence:
        """Sample one sequence, again while the engine is full or restarts: a client would take that for a failure."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self._best(call)
            except (OverloadedError, EngineDownError) as error:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(error.retry_after)

    async def _best(self, call: _Call) -> _Sequence:
        model, checkpoint = call.sampler.model, call.sampler.checkpoint
        if checkpoint == HEAD:
            return await self._drawn(call, None)
        head = model.head_checkpoint_id or BASE
        if checkpoint == head and not self._is_ahead(model.id):
            # The weights that serve are these: no second copy is loaded.
            sequence = await self._drawn(call, None, expected=checkpoint)
            if sequence.pure:
                return sequence
        return await self._drawn(call, checkpoint)

    async def _drawn(
        self, call: _Call, checkpoint: str | None, expected: str | None = None
    ) -> _Sequence:
        """Sample one sequence; it ends early if other weights than `expected` sample it."""
        sequence = _Sequence()
        detokenizer = call.form.vocabulary.detokenizer()
        scanner = StopScanner(call.stops)
        stream = self._engine().stream(call.sampler.model, checkpoint, call.request)
        async with aclosing(stream):
            async for item in stream:
                if expected is not None and not _is_of(item, expected):
                    sequence.pure = False
                    return sequence
                if isinstance(item, TokenEnd):
                    sequence.cached = item.cached_tokens
                    sequence.stopped = item.finish_reason == "stop"
                    break
                call.room.take(len(item.token_ids), item.top)
                call.meter.prompt_tokens += 0 if sequence.tokens else len(call.request.prompt)
                call.meter.completion_tokens += len(item.token_ids)
                for place, token in enumerate(item.token_ids):
                    sequence.tokens.append(token)
                    sequence.logprobs.append(item.logprobs[place])
                    if item.top is not None:
                        sequence.top.append(item.top[place])
                    if call.stops:
                        scanner.take(detokenizer.take([token]))
                        if scanner.stop_string is not None:
                            sequence.cached, sequence.stopped = item.cached_tokens, True
                            return sequence
        return sequence

    async def _scores(self, sampler: Sampler, request: ScoreRequest) -> PromptScores:
        model, checkpoint = sampler.model, sampler.checkpoint
        head = model.head_checkpoint_id or BASE
        if checkpoint != HEAD and (checkpoint != head or self._is_ahead(model.id)):
            request = request.model_copy(update={"checkpoint": checkpoint})
        return PromptScores.model_validate_json(await self._engine().call(model, request))


def _refuse(body: Sample) -> None:
    """Raise `UsageError` for parameters that this platform does not honour."""
    if body.prompt_alt_tokens_k > MOST_DRAWS:
        raise UsageError(f"prompt_alt_tokens_k is at most {MOST_DRAWS}.")
    if body.record_stability_info:
        raise UsageError(
            "Stability information for stable_reinforce is not recorded here; leave it out."
        )
    if body.topk_sample_logprobs > MOST_TOP:
        raise UsageError(f"topk_sample_logprobs is at most {MOST_TOP}.")
    if len(body.sampling_params.text_stops) > MOST_STOPS:
        raise UsageError(f"stop holds at most {MOST_STOPS} texts.")
    count = body.prompt.length
    named = 0 if body.target_prompt_logprobs is None else len(body.target_prompt_logprobs.data)
    if count * (body.topk_prompt_logprobs + body.prompt_alt_tokens_k) + named > MOST_ALTERNATIVES:
        raise UsageError(
            f"topk_prompt_logprobs and prompt_alt_tokens_k, times the prompt's {count} tokens, and the ids of "
            f"target_prompt_logprobs are at most {MOST_ALTERNATIVES:,} together."
        )
    if body.prompt_logprobs_last_n is not None and body.prompt_logprobs_last_n >= count:
        raise UsageError(f"prompt_logprobs_last_n must be below the prompt's {count} tokens.")


def _request(
    form: Format, prompt: PromptIds, body: Sample, number: int, tenant: str, *, counted: bool
) -> TokenRequest:
    wanted = body.sampling_params
    stop_ids: frozenset[int] = frozenset()
    if wanted.stop is None:
        stop_ids = form.chat.stop_ids
    elif not wanted.text_stops:
        stop_ids = frozenset(
            stop for stop in wanted.stop if isinstance(stop, int) and 0 <= stop < MOST_TOKENS
        )
    params = SamplingParams(
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=max(0, wanted.top_k),
        seed=wanted.seed_of(number),
    )
    return TokenRequest(
        prompt,
        params,
        stop_ids,
        body.topk_sample_logprobs,
        tenant,
        pictures=prompt.pictures,
        # Stops are looked for in the tokens so far, and a cancelled request is charged for them.
        followed=bool(wanted.text_stops) or counted,
    )


def _is_of(item: TokenDelta | TokenEnd, expected: str) -> bool:
    swapped = isinstance(item, TokenDelta) and bool(item.swaps)
    return (item.version or BASE) == expected and not swapped
