"""`TokenModel`: a trainer's sampler, which takes and gives token ids, as a model of our tool loop.

Trainers own the weights and sample with servers of theirs. The chat format here renders prompts and parses turns, so that a
conversation is token ids from its start to its end, and none is encoded again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import completion_of, next_prompt, sample_of
from hud.engine.sample.request import SampledTurn
from hud.errors import ContextOverflow
from hud.trace import (
    ChatMessage,
    Completion,
    Continuation,
    SamplingParams,
    ToolSpec,
    begins_turn,
)
from hud.trace.chat_model import ChatModel


@dataclass(frozen=True)
class Sampled:
    """One sampled turn; `logprobs` are natural logs, empty where the sampler gives none."""

    token_ids: list[int]
    logprobs: list[float]


Generate = Callable[[list[int], int, str], Awaitable[Sampled]]
"""`(prompt_ids, most_tokens, request_id)`: one turn. The request id is one for all turns of a run."""


@dataclass
class TokenModel(ChatModel):
    """A `ChatModel` over a sampler of token ids."""

    name: str
    chat: ChatFormat
    generate: Generate
    prompt_tokens: int
    """Most tokens of a sequence's first prompt."""
    response_tokens: int
    """Most tokens after the first prompt, in all turns of a sequence together."""
    total_tokens: int | None = None
    """Most tokens of a sequence; None: of its two parts."""
    temperature: float = 1.0
    _prompts: dict[str, int] = field(default_factory=dict)
    """Tokens of each run's first prompt, since its last split."""

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Sample the next turn. Raises `ContextOverflow` where the trainer's lengths leave no room."""
        prompt, extended = next_prompt(self.chat, messages, tools, continuation)
        if continuation is None or not extended:
            self._prompts[trace_id or ""] = len(prompt)
        room = params.most_tokens(self._room(len(prompt), self._prompts[trace_id or ""]))
        sampled = await self.generate(prompt, room, trace_id or "")
        ids = sampled.token_ids
        ended = bool(ids) and ids[-1] in self.chat.stop_ids
        drawn = SampledTurn(ids, sampled.logprobs, "stop" if ended else "length", 0, None)
        completion = completion_of(self.chat, prompt, drawn, tools, begun=begins_turn(messages))
        completion.model, completion.extended = self.name, extended
        completion.sample = sample_of(prompt, drawn, self.temperature)
        return completion

    def _room(self, length: int, first: int) -> int:
        if first > self.prompt_tokens:
            raise ContextOverflow(
                f"The prompt has {first} tokens, and the trainer takes {self.prompt_tokens}."
            )
        room = self.response_tokens - (length - first)
        if self.total_tokens is not None:
            room = min(room, self.total_tokens - length)
        if room < 1:
            raise ContextOverflow(f"The run has all the tokens that the trainer takes: {length}.")
        return room


def chat_format(tokenizer: Any, model: str) -> ChatFormat:
    """Return the chat format of a trainer's tokenizer and of its model's folder or hub id."""
    return _chat_format(_Shared(tokenizer), model)


@dataclass(frozen=True)
class _Shared:
    """A tokenizer, compared by identity: it is not hashable by its contents."""

    tokenizer: Any

    def __hash__(self) -> int:
        return id(self.tokenizer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and other.tokenizer is self.tokenizer


@lru_cache(maxsize=4)
def _chat_format(shared: _Shared, model: str) -> ChatFormat:
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory(prefix="hud-chat-") as name:
        folder = Path(name)
        AutoConfig.from_pretrained(model).save_pretrained(folder)
        shared.tokenizer.save_pretrained(folder)
        return ChatFormat(folder, DecoderConfig.from_folder(folder))
