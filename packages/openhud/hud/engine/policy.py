"""A policy: weights that sample and are trained, in one process, with the chat format of their folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.conversation_pictures import PromptIds
from hud.engine.chat.grammars import Constraint
from hud.engine.chat.tool_calls.format import Parsed
from hud.engine.learn.pass_workers import PassWorker
from hud.engine.models.precision import computing_type
from hud.engine.pretrained import load_decoder, weight_bytes
from hud.engine.sample.cache_budget import budget_of
from hud.engine.sample.options import BY_MEMORY, CacheFacts, SamplerOptions
from hud.engine.sample.request import Request, SampledTurn, Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.engine.workers.sampler_pool import SamplerPool
from hud.trace import (
    ChatMessage,
    Completion,
    Continuation,
    Sample,
    SamplingParams,
    ToolSpec,
    Usage,
    begins_turn,
    with_system_prompt,
)
from hud.trace.sampled.pictures import Picture


class TurnSampler(Protocol):
    """Samples turns with the weights of a policy: in this process (`SamplerPool`, `ForkSampler`) or elsewhere."""

    version: str | None
    """The checkpoint of the sampled weights; set after they have changed."""

    @property
    def load(self) -> int:
        """Active and waiting sequences."""

    @property
    def closed(self) -> bool:
        """True once no turn is accepted."""

    @property
    def cache(self) -> CacheFacts | None:
        """The key-value cache; None: it is elsewhere."""
        return None

    def queue_length(self) -> int:
        """Return how many waiting sequences are not abandoned."""

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn; see `Sampler.submit`."""

    def exclusive(self, *, in_flight: bool = False) -> AbstractContextManager[None]:
        """Allow changes of the weights inside the block; see `Policy.exclusive`."""

    def revive(self) -> None:
        """Restart sampling, after a failure or `close`."""

    def close(self) -> None:
        """Stop sampling."""


class Policy:
    """A decoder with its chat format and sampler. Training changes the weights in place."""

    def __init__(
        self,
        decoder: Any,
        chat: ChatFormat,
        *,
        sampling: SamplerOptions = BY_MEMORY,
        samplers: TurnSampler | None = None,
    ) -> None:
        """`samplers` samples with the decoder's weights; None: a `SamplerPool` with the options `sampling`."""
        self.decoder: Any = decoder
        """A module of torch or, where its samplers compute elsewhere, anything with its `config`."""
        self.chat = chat
        self.system_prompt: str | None = None
        """The model's own system prompt, with these weights."""
        self._samplers: TurnSampler = samplers or SamplerPool(decoder, sampling)

    @property
    def sampler(self) -> Sampler:
        """The sampler in this process, of a policy that is sampled here."""
        assert isinstance(self._samplers, SamplerPool)
        return self._samplers.own.sampler

    @property
    def turn_sampler(self) -> TurnSampler:
        """Samples its turns: in this process, or on servers."""
        return self._samplers

    @property
    def closed(self) -> bool:
        """True after sampling has stopped."""
        return self._samplers.closed

    @property
    def cache(self) -> CacheFacts | None:
        """The key-value cache of its sampler; None: servers sample it."""
        return self._samplers.cache

    @property
    def turns(self) -> int:
        """Active and waiting sequences."""
        return self._samplers.load

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        sampling: SamplerOptions = BY_MEMORY,
        tool_call_parser: str | None = None,
    ) -> Policy:
        """Load a Hugging Face folder. A CPU computes it in fp32 where that is faster than `dtype`; see `computing_type`."""
        if dtype is not None:
            dtype = computing_type(dtype, device, folder)
        with budget_of(device).room_for(weight_bytes(folder, dtype)):
            decoder = load_decoder(folder, dtype=dtype, device=device)
        chat = ChatFormat(folder, decoder.config, tool_call_parser=tool_call_parser)
        return cls(decoder, chat, sampling=sampling)

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint whose weights these are; None: the base weights."""
        return self._samplers.version

    @checkpoint.setter
    def checkpoint(self, checkpoint: str | None) -> None:
        self._samplers.version = checkpoint

    def beside(self) -> Sequence[PassWorker]:
        """Return the worker processes that compute training passes now, if any; see `Trainer`."""
        return self._samplers.beside() if isinstance(self._samplers, SamplerPool) else ()

    def exclusive(self, *, in_flight: bool = False) -> AbstractContextManager[None]:
        """Pause sampling while the weights change, and drop the keys and values of the old ones.

        Active turns continue with a copy of the old weights, where there is memory for that; else they are finished first.
        With `in_flight` only the running decode step is finished: active turns continue with the new weights, over the keys
        and values of the old ones (PipelineRL, arXiv 2509.19128), and record from which token on.
        Blocks the calling thread, so call it off the event loop.
        """
        return self._samplers.exclusive(in_flight=in_flight)

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        pictures: tuple[Picture, ...] = (),
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> SampledTurn:
        """Sample one turn; see `Sampler.submit`."""
        turn = Turn(
            prompt=prompt,
            pictures=pictures,
            params=params,
            stop_ids=self.chat.stop_ids,
            stopped=stopped,
        )
        return await wait_for_turn(lambda listener: self.submit(turn, listener))

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn and return it at once; see `Sampler.submit`."""
        return self._samplers.submit(turn, listener)

    def queue_length(self) -> int:
        """Return how many waiting sequences are not abandoned."""
        return self._samplers.queue_length()

    def revive(self) -> None:
        """Restart sampling with the same weights, after a failure or `close`."""
        self._samplers.revive()

    def constraint(self, grammar: str) -> Constraint:
        """Return the grammar state of a sequence. Raises `UsageError` for an invalid grammar."""
        return self.chat.grammars.compile(grammar)

    def chat_model(self, name: str, system_prompt: str | None = None) -> PolicyChatModel:
        """Return the policy as a `ChatModel` for agents; see `PolicyChatModel`."""
        return PolicyChatModel(name, self, system_prompt)

    def close(self) -> None:
        """Stop sampling."""
        self._samplers.close()


class SampledPolicy(Protocol):
    """Weights that can be sampled, here or elsewhere, with the chat format of their folder."""

    chat: ChatFormat
    system_prompt: str | None

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        pictures: tuple[Picture, ...] = (),
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> SampledTurn:
        """Sample one turn; see `Policy.sample`."""


class PolicyChatModel:
    """A `ChatModel` that samples from a policy."""

    def __init__(self, name: str, policy: SampledPolicy, system_prompt: str | None = None) -> None:
        """`system_prompt` takes the place of the policy's own; an empty one is none."""
        self.name = name
        self.policy = policy
        self.system_prompt = system_prompt

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Sample the assistant's next turn. A truncated distribution (top-p, top-k) gives no sample to train on."""
        chat = self.policy.chat
        effort = params.reasoning_effort
        prompt_text = self.system_prompt
        if prompt_text is None:
            prompt_text = self.policy.system_prompt
        messages = with_system_prompt(messages, prompt_text)
        prompt, extended = next_prompt(chat, messages, tools, continuation, effort)
        stopped = None
        if params.stop:

            def stopped(ids: list[int]) -> bool:
                text = chat.decode(ids)
                return any(stop in text for stop in params.stop)

        drawn = await self.policy.sample(prompt, params, pictures=prompt.pictures, stopped=stopped)
        completion = completion_of(chat, prompt, drawn, tools, begun=begins_turn(messages))
        completion.content = _before(completion.content, params.stop)
        completion.model, completion.extended = self.name, extended
        if not params.truncates:
            completion.sample = sample_of(prompt, drawn, params.effective_temperature)
        return completion

    async def aclose(self) -> None:
        """Close nothing: the policy is its owner's."""


def next_prompt(
    chat: ChatFormat,
    messages: list[ChatMessage],
    tools: list[ToolSpec],
    continuation: Continuation | None,
    effort: str | None = None,
) -> tuple[PromptIds, bool]:
    """Return the tokens of a turn's prompt, and True where they extend those of the turn before, or none came before.

    A last message of the assistant is the beginning of the turn. Raises `UsageError` where the model cannot continue it.
    """
    if begins_turn(messages):
        return chat.render_beginning(messages, tools, effort=effort), continuation is None
    prompt = None
    if continuation is not None:
        prompt = chat.extend(continuation, messages, tools, effort=effort)
    if prompt is not None:
        return prompt, True
    return chat.render(messages, tools, effort=effort), continuation is None


def completion_of(
    chat: ChatFormat,
    prompt: list[int],
    drawn: SampledTurn,
    tools: list[ToolSpec],
    *,
    begun: bool = False,
) -> Completion:
    """Return the completion that a turn's tokens are, without its sample.

    With `begun` the prompt ends with the beginning of the turn, and the content keeps the whitespace that follows it.
    """
    parsed = chat.parse(drawn.token_ids, tools, opened=not begun and chat.opens_reasoning(prompt))
    content = parsed.content
    if begun and content:
        text = chat.decode(drawn.token_ids)
        content = text[: len(text) - len(text.lstrip())] + content.lstrip()
    return Completion(
        content=content,
        reasoning=parsed.reasoning,
        tool_calls=parsed.tool_calls,
        finish_reason=_finish_reason(drawn, parsed),
        usage=Usage(
            prompt_tokens=len(prompt),
            completion_tokens=len(drawn.token_ids),
            cached_tokens=drawn.cached_tokens,
        ),
    )


def sample_of(prompt: PromptIds, drawn: SampledTurn, temperature: float) -> Sample:
    """Return a turn's tokens as a sample to train on."""
    # Built, not validated: these lists are the sampler's own, and long.
    return Sample.model_construct(
        prompt_token_ids=prompt,
        pictures=list(prompt.pictures),
        output_token_ids=drawn.token_ids,
        output_logprobs=drawn.logprobs,
        checkpoint=drawn.version,
        swaps=drawn.swaps,
        temperature=temperature,
    )


def _finish_reason(drawn: SampledTurn, parsed: Parsed) -> str:
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
