"""A sampling client of Tinker as a model of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import PolicyChatModel
from hud.engine.sample.request import SampledTurn, room_after
from hud.errors import InfrastructureFault, UsageError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture
from hud_integrations.tinker.backend.sampler import service_params

GATHER_SECONDS = 0.01
"""Longest time for which a turn waits for equal ones, in seconds."""


class TinkerModel(PolicyChatModel):
    """A sampling client of Tinker as a `ChatModel`: agents play with it, and their runs carry its tokens."""

    def __init__(
        self, sampler: Any, folder: Path | str, *, name: str = "tinker", group: int | None = None
    ) -> None:
        """`sampler`: a `tinker.SamplingClient`, or `SamplingProcess.client` of one. `folder`: tokenizer, chat template and
        config.json of its model.

        `group`: number of runs that begin with the same prompt, as of `tasks.run(..., group=8)`: their first turns are
        requested as soon as all have come. None: after `GATHER_SECONDS`.
        """
        place = Path(folder)
        config = DecoderConfig.from_folder(place)
        super().__init__(name, ServicePolicy(sampler, ChatFormat(place, config), config, group))


_Turn: TypeAlias = "asyncio.Future[tuple[SampledTurn, _Answered]]"


@dataclass
class _Request:
    """Equal turns that wait to be sampled by one request."""

    prompt: list[int]
    sampling: Any
    late: asyncio.TimerHandle
    """Sends it after `GATHER_SECONDS`."""
    turns: list[_Turn] = field(default_factory=list)


@dataclass
class _Answered:
    """Runs whose last turns one request answered: their next turns begin together."""

    policy: ServicePolicy
    prompt: list[int]
    left: int
    """Runs of them that have not asked again."""
    keys: set[Hashable] = field(default_factory=set)
    """Requests that wait for them."""

    def continued_by(self, policy: ServicePolicy, prompt: list[int]) -> bool:
        """True if a prompt continues one of the runs."""
        return policy is self.policy and prompt[: len(self.prompt)] == self.prompt


_ANSWERED: ContextVar[_Answered | None] = ContextVar("_ANSWERED", default=None)
"""Request that answered the last turn of the run that this task plays."""


class ServicePolicy:
    """Weights behind a sampling client, with the chat format of their folder.

    Turns that ask the same at the same time, as those of a group do at first, are samples of one request: the service
    computes their prompt once, and both sides handle fewer requests. A turn waits until the runs that were answered together
    with its own have asked again, at most for `GATHER_SECONDS`; one that was answered alone does not wait.
    """

    system_prompt: str | None = None

    def __init__(
        self, sampler: Any, chat: ChatFormat, config: DecoderConfig, group: int | None = None
    ) -> None:
        self.sampler, self.chat, self.config = sampler, chat, config
        self._group = group
        self._waiting: dict[Hashable, _Request] = {}
        """By prompt and parameters."""
        self._asking: set[asyncio.Future[Any]] = set()

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        pictures: tuple[Picture, ...] = (),
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> SampledTurn:
        """Sample one turn. Raises `ContextOverflow` for a prompt that leaves no room, `UsageError` for one with pictures."""
        if pictures:
            raise UsageError("Prompts with pictures are not sampled by a Tinker service.")
        config = self.config
        room = room_after(prompt, config.vocab_size, config.max_position_embeddings, "the model")
        most = params.most_tokens(room)
        loop = asyncio.get_running_loop()
        turn: _Turn = loop.create_future()
        # Samples of one request have different seeds, so a turn with a seed goes alone.
        key: Hashable = (tuple(prompt), params, most) if params.seed is None else turn
        request = self._waiting.get(key)
        if request is None:
            sampling = service_params(params, most, self.chat.stop_ids, self.chat)
            late = loop.call_later(GATHER_SECONDS, self._send, key)
            request = self._waiting[key] = _Request(prompt, sampling, late)
        request.turns.append(turn)
        for complete in self._complete(key, request):
            self._send(complete)
        sampled, answered = await turn
        _ANSWERED.set(answered)
        return sampled

    def _complete(self, key: Hashable, request: _Request) -> Collection[Hashable]:
        """Return the requests that wait for no other run, now that this task's run has joined `request`."""
        answered = _ANSWERED.get()
        _ANSWERED.set(None)
        if answered is not None and answered.continued_by(self, request.prompt):
            answered.left -= 1
            answered.keys.add(key)
            if answered.left <= 0:
                return answered.keys
        alone = key in request.turns  # It has a seed.
        return (key,) if alone or len(request.turns) == self._group else ()

    def _send(self, key: Hashable) -> None:
        """Request the turns of `key`, if they still wait."""
        from tinker import types

        request = self._waiting.pop(key, None)
        if request is None:
            return
        request.late.cancel()
        turns = [turn for turn in request.turns if not turn.done()]
        if not turns:
            return
        prompt = types.ModelInput.from_ints(request.prompt)
        try:
            asking = asyncio.ensure_future(
                self.sampler.sample(prompt, len(turns), request.sampling)
            )
        except Exception as error:
            for turn in turns:
                turn.set_exception(error)
            return
        self._asking.add(asking)
        asking.add_done_callback(partial(self._answer, request.prompt, turns))

    def _answer(self, prompt: list[int], turns: list[_Turn], asking: asyncio.Future[Any]) -> None:
        """Resolve turns with their samples, or with the error of their request."""
        self._asking.discard(asking)
        answered = _Answered(self, prompt, len(turns))
        error: BaseException | None = InfrastructureFault("The sampling client was closed.")
        if not asking.cancelled():
            error = asking.exception()
        for number, turn in enumerate(turns):
            if turn.done():  # Its run was cancelled.
                answered.left -= 1
            elif error is not None:
                turn.set_exception(error)
            else:
                response = asking.result()
                sequence, cached = response.sequences[number], response.prompt_cache_hit_tokens or 0
                sampled = SampledTurn(
                    list(sequence.tokens),
                    list(sequence.logprobs),
                    sequence.stop_reason,
                    cached,
                    None,
                )
                turn.set_result((sampled, answered))
