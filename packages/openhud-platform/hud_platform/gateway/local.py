"""Turns of this server's models: messages to token ids, and sampled ids to events.
The engine works on tokens; chat formats, tool calls, stop strings and detokenization are in this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hud.engine.chat.conversation_pictures import has_pictures
from hud.engine.chat.template_limits import SlowTemplateError, at_most
from hud.errors import UsageError
from hud.inference.dialects.events import Begun, Event
from hud.inference.dialects.request import GenerationRequest
from hud.trace import begins_turn, with_system_prompt
from hud_platform.gateway.chat_formats import Format
from hud_platform.gateway.detokenizing import Vocabulary
from hud_platform.gateway.grammar import grammar_of
from hud_platform.gateway.ledger import Meter
from hud_platform.gateway.merging import merged
from hud_platform.gateway.pacing import Pacing
from hud_platform.gateway.turn_reader import Prompt, TurnReader
from hud_platform.models.records import ModelRecord
from hud_platform.serving.token_engine import TokenDelta, TokenRequest

if TYPE_CHECKING:
    from hud_platform.serving.token_engine import TokenEngine

_LONG = 20_000
"""Length of a conversation, in characters, from which it is rendered in a thread to keep the event loop responsive."""
_SHORT_SECONDS, _LONG_SECONDS = 0.25, 1.0
"""Processor time of a template, on the event loop and in a shared thread, after which its model gets a thread of its own."""


@dataclass(frozen=True)
class LocalModel:
    """Model of this server, at its head or at a checkpoint."""

    record: ModelRecord
    checkpoint: str | None
    """None: the head, read when sampling begins."""
    format: Format
    system_prompt: str | None = None
    """The model's own system prompt."""

    @property
    def name(self) -> str:
        """Name of the model in responses."""
        return self.record.slug

    def cost(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Return None: tokens of this server's models have no price."""
        del prompt_tokens, completion_tokens


class LocalTurns:
    """Samples turns from an engine."""

    def __init__(self, engine: Callable[[], TokenEngine], pacing: Pacing) -> None:
        """`engine` is called at each turn: constructing the engine loads torch, which providers' models do not need."""
        self.engine = engine
        self.pacing = pacing

    async def events(
        self, model: LocalModel, request: GenerationRequest, tenant: str, meter: Meter
    ) -> AsyncGenerator[list[Event], None]:
        """Stream the events of a turn. Closing the generator cancels its sequences in the engine."""
        prompts = await prompts_of(model, request)
        stated, context = request.sampling.max_tokens, model.format.context
        shortest = min(len(prompt.ids) for prompt in prompts)
        longest = max(0, context - shortest)
        most = None if stated is None else min(stated, longest)
        prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        bound = await meter.reserve(prompt_tokens, most, longest, request.choices)
        if bound is not None and bound < longest:
            request = replace(request, sampling=replace(request.sampling, max_tokens=bound))
        meter.prompt_tokens = prompt_tokens
        begun = False
        with self.pacing.stream():
            streams = [
                self._choice(model, request, tenant, place, prompts[place % len(prompts)], meter)
                for place in range(request.choices)
            ]
            async with aclosing(merged(streams)) as batches:
                async for events in batches:
                    if not begun:
                        # Not before the first token: until then the engine may still refuse the request.
                        begun = True
                        yield [Begun(meter.prompt_tokens)]
                    yield events

    async def _choice(
        self,
        model: LocalModel,
        request: GenerationRequest,
        tenant: str,
        choice: int,
        prompt: Prompt,
        meter: Meter,
    ) -> AsyncGenerator[list[Event], None]:
        reader = TurnReader(model.format, request, choice, prompt)
        token_request = TokenRequest(
            prompt=prompt.ids,
            pictures=prompt.pictures,
            params=request.params(choice),
            stop_ids=model.format.chat.stop_ids,
            top_logprobs=request.top_logprobs or 0,
            tenant=tenant,
            grammar=grammar_of(model.format.chat, request, opened=prompt.opened),
        )
        end = None
        async with aclosing(
            self.engine().stream(model.record, model.checkpoint, token_request)
        ) as items:
            async for item in items:
                meter.checkpoint = item.version
                if not isinstance(item, TokenDelta):
                    end = item
                    meter.cached_tokens += end.cached_tokens
                    break
                meter.completion_tokens += len(item.token_ids)
                yield reader.take(item)
                if reader.stopped:
                    break
                await self.pacing.rest()
        yield reader.end(end)


async def prompts_of(model: LocalModel, request: GenerationRequest) -> list[Prompt]:
    """Return the prompts of a request, one for each choice or one for all."""
    threads = model.format.chat.encoding_threads
    if threads is None:
        try:
            if _size(request) <= _LONG:
                return _prompts_within(_SHORT_SECONDS, model, request)
            return await asyncio.to_thread(_prompts_within, _LONG_SECONDS, model, request)
        except SlowTemplateError:
            model.format.chat.render_apart()
            threads = model.format.chat.encoding_threads
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, _prompts, model, request)


def _prompts_within(seconds: float, model: LocalModel, request: GenerationRequest) -> list[Prompt]:
    """Return the prompts of a request. Raises `SlowTemplateError` if its template takes longer."""
    with at_most(seconds):
        return _prompts(model, request)


def _size(request: GenerationRequest) -> int:
    if request.prompts is not None:
        return sum(len(prompt) for prompt in request.prompts)
    texts = sum(len(message.get("content") or "") for message in request.messages)
    # The processor takes milliseconds for a picture.
    pictures = sum(map(has_pictures, request.messages))
    return texts + 200 * len(request.tools) + (_LONG + 1) * pictures


def _prompts(model: LocalModel, request: GenerationRequest) -> list[Prompt]:
    chat, vocabulary = model.format.chat, model.format.vocabulary
    if request.prompts is not None:
        return [
            Prompt(chat.encode(prompt) if isinstance(prompt, str) else _known(prompt, vocabulary))
            for prompt in request.prompts
        ]
    effort = request.sampling.reasoning_effort
    if effort is None and request.budgeted_effort is not None:
        reasoning = chat.template(tools=bool(request.offered)).reasoning
        effort = request.budgeted_effort if reasoning.takes(request.budgeted_effort) else None
    own = model.system_prompt if request.system_prompt is None else request.system_prompt
    messages = with_system_prompt(request.messages, own)
    begun = begins_turn(messages)
    ids = None
    if request.continuation is not None and not begun:
        _known(request.continuation.token_ids, vocabulary)
        ids = chat.extend(request.continuation, messages, request.offered, effort=effort)
    if ids is None:
        render = chat.render_beginning if begun else chat.render
        ids = render(messages, request.offered, effort=effort)
    opened = not begun and chat.opens_reasoning(ids)
    return [Prompt(ids, ids.pictures, opened=opened, begun=begun)]


def _known(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    size = len(vocabulary)
    if any(token >= size for token in ids):
        raise UsageError(
            f"The prompt holds the token id {max(ids)}; the model's vocabulary has {size} tokens."
        )
    return ids
