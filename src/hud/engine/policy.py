"""A policy: weights that sample and are trained, in one process, with the chat format of their folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hud.engine.chat import ChatFormat
from hud.engine.constraints import Constraint, grammars_of
from hud.engine.folder import load_decoder
from hud.engine.lora import lora_parameters
from hud.engine.sampler import Sampler
from hud.engine.sequence import Drawn, SamplerClosed
from hud.engine.toolcalls import Parsed
from hud.trace import (
    ChatMessage,
    Completion,
    Continuation,
    Sample,
    SamplingParams,
    ToolSpec,
    Usage,
)

if TYPE_CHECKING:
    from hud.engine.folder import AnyDecoder


HAND_OVER_BYTES = 1 << 30
"""Most memory for a second cache and a copy of the weights that change, while turns are drawn to their end."""


class Policy:
    """A decoder, its chat format and its sampler. Whoever trains it changes the weights in place."""

    def __init__(
        self,
        decoder: AnyDecoder,
        chat: ChatFormat,
        *,
        checkpoint: str | None = None,
        slots: int = 64,
    ) -> None:
        self.decoder = decoder
        self.chat = chat
        self.slots = slots
        self._changing = threading.RLock()
        self._retiring: Sampler | None = None
        """Draws what it had begun when weights changed."""
        self.sampler = Sampler(decoder, slots=slots, version=checkpoint)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        checkpoint: str | None = None,
        slots: int = 64,
    ) -> Policy:
        """Load a Hugging Face folder."""
        decoder = load_decoder(folder, dtype=dtype, device=device)
        return cls(decoder, ChatFormat(folder, decoder.config), checkpoint=checkpoint, slots=slots)

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint whose weights these are; None: the base weights."""
        return self.sampler.version

    @checkpoint.setter
    def checkpoint(self, checkpoint: str | None) -> None:
        self.sampler.set_version(checkpoint)

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        """Keep sampling still while the weights change, and forget what was computed with the old ones.

        What is in flight goes on with a copy of the old weights, where there is room for that; else it is finished first.
        With `in_flight` it waits for nothing but the decode step: turns on their way are continued by the new weights, over
        the keys and values of the old ones (PipelineRL, arXiv 2509.19128), and it stands on each from which token on.
        Blocks the calling thread, so call it off the event loop.
        """
        with self._changing:
            if in_flight:
                with self.sampler.between_steps():
                    yield
                    self.sampler.slots.forget()
                return
            successor = self._successor()
            with (successor or self.sampler).exclusive():
                if successor is not None:
                    self._retiring, self.sampler = self.sampler, successor
                    self._retiring.hand_over(successor, copied(self.decoder))
                yield
                self.sampler.slots.forget()

    def _successor(self) -> Sampler | None:
        """Return a sampler that goes on while this one draws what it has begun; None where that is not worth it."""
        retiring = self._retiring is not None and bool(self._retiring.active)
        if retiring or not self.sampler.active or self._copy_bytes() > HAND_OVER_BYTES:
            return None
        return Sampler(self.decoder, slots=self.slots, version=self.checkpoint)

    def _copy_bytes(self) -> int:
        changing = lora_parameters(self.decoder).values() or self.decoder.parameters()
        cache = self.sampler.cache
        return cache.keys.nbytes + cache.values.nbytes + sum(one.nbytes for one in changing)

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> Drawn:
        """Draw one turn; see `Sampler.sample`."""
        while True:
            sampler = self.sampler
            try:
                return await sampler.sample(prompt, params, self.chat.stop_ids, stopped=stopped)
            except SamplerClosed:
                if sampler is self.sampler:
                    raise
                # Another has taken over between the look and the asking.

    def revive(self) -> None:
        """Sample again with the same weights, where the sampler failed or was closed."""
        if self.sampler.closed:
            self.sampler = Sampler(self.decoder, slots=self.slots, version=self.checkpoint)

    def constraint(self, grammar: str) -> Constraint:
        """Return a grammar that binds one sequence. Raises `UsageError` for one that is none."""
        return grammars_of(self.chat.folder, self.chat.end_id).compile(grammar)

    def chat_model(self, name: str) -> PolicyChatModel:
        """Return the policy as a model that agents can ask."""
        return PolicyChatModel(name, self)

    def close(self) -> None:
        """Stop sampling."""
        self.sampler.close()
        if self._retiring is not None:
            self._retiring.close()


def copied(decoder: AnyDecoder) -> AnyDecoder:
    """Return a copy that keeps its weights when those of `decoder` change; of an adapted one they share the base's."""
    adapter = {id(parameter) for parameter in lora_parameters(decoder).values()}
    shared = {
        id(parameter): parameter
        for parameter in decoder.parameters()
        if adapter and id(parameter) not in adapter
    }
    return deepcopy(decoder, dict(shared))


class PolicyChatModel:
    """`ChatModel` without anything in between."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Draw the assistant's next turn. A truncated distribution (top-p, top-k) gives no sample to train on."""
        del trace_id
        chat = self.policy.chat
        prompt = chat.extend(continuation, messages, tools) if continuation is not None else None
        extended = continuation is None or prompt is not None
        if prompt is None:
            prompt = chat.render(messages, tools)
        stopped = None
        if params.stop:

            def stopped(ids: list[int]) -> bool:
                text = chat.decode(ids)
                return any(stop in text for stop in params.stop)

        drawn = await self.policy.sample(prompt, params, stopped=stopped)
        parsed = chat.parse(drawn.token_ids, tools)
        return Completion(
            content=_before(parsed.content, params.stop),
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            finish_reason=_finish_reason(drawn, parsed),
            model=self.name,
            usage=Usage(
                prompt_tokens=len(prompt),
                completion_tokens=len(drawn.token_ids),
                cached_tokens=drawn.cached_tokens,
            ),
            sample=None if params.truncates else _sample(prompt, drawn, params),
            extended=extended,
        )


def _sample(prompt: list[int], drawn: Drawn, params: SamplingParams) -> Sample:
    # Built, not validated: these lists are the sampler's own, and long.
    return Sample.model_construct(
        prompt_token_ids=prompt,
        output_token_ids=drawn.token_ids,
        output_logprobs=drawn.logprobs,
        checkpoint=drawn.version,
        swaps=drawn.swaps,
        temperature=params.temperature or 1.0,
    )


def _finish_reason(drawn: Drawn, parsed: Parsed) -> str:
    if drawn.finish_reason == "length":
        return "length"
    if parsed.malformed:
        return "malformed_tool_call"
    return "tool_calls" if parsed.tool_calls else "stop"


def _before(content: str | None, stops: tuple[str, ...]) -> str | None:
    """Return the content up to the first stop string."""
    if content is None or not stops:
        return content
    ends = [content.find(stop) for stop in stops if stop in content]
    return content[: min(ends)] if ends else content
