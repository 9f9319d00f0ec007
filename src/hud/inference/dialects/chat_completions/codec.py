"""OpenAI's chat completions, with the fields by which policies are trained.

`return_token_ids` puts `prompt_token_ids` and `token_ids` into each choice, streamed or not; `prompt_token_ids` with
`continuation_from` goes on from exact ids, of which `continuation_from` messages, system messages not counted, are
already written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.conversation import (
    call_message,
    openai_error,
    read_format,
    read_message,
    read_stops,
    read_tool_choice,
    read_tools,
)
from hud.inference.dialects.codec import EVENTS, Family, Refusal
from hud.inference.dialects.efforts import read_effort
from hud.inference.dialects.events import (
    CallArguments,
    CallBegun,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.turns import Turn, usage_of
from hud.trace import Continuation, SamplingParams, Usage, new_id

MOST_CHOICES = 128
MOST_TOP_LOGPROBS = 20
_LARGEST_ID = 1 << 31
_UNSUPPORTED = (
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "functions",
    "function_call",
    "audio",
    "web_search_options",
)


class ChatCodec:
    """`POST /chat/completions`."""

    family: Family = "openai"

    def read(self, body: Fields) -> GenerationRequest:
        body.refuse(_UNSUPPORTED, " for this model")
        if body.get("modalities") not in (None, ["text"]):
            raise body.wrong("modalities", "['text'] for this model")
        tools = read_tools(body)
        messages = [read_message(message) for message in body.objects("messages")]
        if not messages:
            raise UsageError("messages must hold at least one message.")
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=read_sampling(body),
            choices=body.integer("n", least=1, most=MOST_CHOICES) or 1,
            tool_choice=read_tool_choice(body, tools),
            parallel_calls=body.flag("parallel_tool_calls") is not False,
            format=read_format(body.inner("response_format")),
            top_logprobs=_top_logprobs(body),
            return_token_ids=bool(body.flag("return_token_ids")),
            continuation=_continuation(body),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
        )

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [_choice(place, turn, request) for place, turn in enumerate(turns)],
            "usage": usage_json(usage_of(turn.finished for turn in turns)),
            "system_fingerprint": None,
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ChatWriter:
        options = body.inner("stream_options")
        return ChatWriter(
            model, include_usage=bool(options is not None and options.flag("include_usage"))
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)


def read_sampling(body: Fields) -> SamplingParams:
    """Return how to draw, as chat completions and completions say it; `top_k` is an extension of many servers."""
    return SamplingParams(
        max_tokens=body.integer("max_completion_tokens", "max_tokens", least=1),
        temperature=body.number("temperature", least=0, most=2),
        top_p=body.number("top_p", least=1e-6, most=1),
        top_k=body.integer("top_k", least=0),
        stop=read_stops(body, "stop"),
        seed=body.integer("seed", least=0, most=(1 << 63) - 1),
        reasoning_effort=read_effort(body, "reasoning_effort"),
    )


def usage_json(usage: Usage) -> dict[str, Any]:
    """Return token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def logprobs_json(tokens: list[TokenInfo]) -> list[dict[str, Any]]:
    """Return drawn tokens with their logprobs."""
    return [
        {**_token(token), "top_logprobs": [_token(other) for other in token.top]}
        for token in tokens
    ]


def _token(token: TokenInfo) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def _top_logprobs(body: Fields) -> int | None:
    most = body.integer("top_logprobs", least=0, most=MOST_TOP_LOGPROBS)
    if not body.flag("logprobs"):
        if most:
            raise UsageError("top_logprobs needs logprobs: true.")
        return None
    return most or 0


def _continuation(body: Fields) -> Continuation | None:
    ids = body.integers("prompt_token_ids", below=_LARGEST_ID)
    covered = body.integer("continuation_from", least=0)
    if ids is None and covered is None:
        return None
    if not ids or covered is None:
        raise UsageError("prompt_token_ids and continuation_from go together.")
    return Continuation(token_ids=ids, covered=covered)


def _choice(place: int, turn: Turn, request: GenerationRequest) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.text or None,
        "refusal": turn.finished.refusal,
    }
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            call_message(call.id, call.name, call.arguments) for call in turn.calls
        ]
    logprobs = None
    if request.top_logprobs is not None:
        logprobs = {"content": logprobs_json(turn.tokens), "refusal": None}
    return {
        "index": place,
        "message": message,
        "logprobs": logprobs,
        **_ending(turn.finished),
    }


def _ending(finished: Finished) -> dict[str, Any]:
    """Return how a choice ended, and the ids that were asked for."""
    ending: dict[str, Any] = {"finish_reason": finished.reason}
    if finished.malformed:
        # No finish reason of the dialect says it.
        ending["stop_reason"] = "malformed_tool_call"
    elif finished.stop_string is not None:
        ending["stop_reason"] = finished.stop_string
    sample = finished.sample
    if sample is not None:
        ending["prompt_token_ids"] = sample.prompt_token_ids
        ending["token_ids"] = sample.output_token_ids
        ending["checkpoint"] = sample.checkpoint
        if sample.swaps:
            ending["swaps"] = sample.swaps
        ending["temperature"] = sample.temperature
    return ending


class ChatWriter:
    """Chunks of a chat completion."""

    content_type = EVENTS

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._begun: set[int] = set()
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._ends: list[Finished] = []

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(choice, text):
                return self._chunk(choice, b'{"content":' + orjson.dumps(text) + b"}")
            case ReasoningDelta(choice, text):
                return self._chunk(choice, b'{"reasoning_content":' + orjson.dumps(text) + b"}")
            case CallBegun(choice, position, identifier, name):
                call = {"index": position, **call_message(identifier, name, "")}
                return self._chunk(choice, orjson.dumps({"tool_calls": [call]}))
            case CallArguments(choice, position, text):
                more = {"index": position, "function": {"arguments": text}}
                return self._chunk(choice, orjson.dumps({"tool_calls": [more]}))
            case TokensDrawn(choice, tokens):
                self._tokens.setdefault(choice, []).extend(tokens)
            case Finished():
                self._ends.append(event)
                return self._chunk(event.choice, b"{}", _ending(event))
        return b""

    def end(self) -> bytes:
        last = b""
        if self._include_usage:
            usage = orjson.dumps(usage_json(usage_of(self._ends)))
            last = self._head + b'],"usage":' + usage + b"}\n\n"
        return last + b"data: [DONE]\n\n"

    def fail(self, refusal: Refusal) -> bytes:
        return b"data: " + orjson.dumps(openai_error(refusal)) + b"\n\n"

    def _chunk(self, choice: int, delta: bytes, ending: dict[str, Any] | None = None) -> bytes:
        role = b""
        if choice not in self._begun:
            self._begun.add(choice)
            role = self._told(choice, b'{"role":"assistant","content":""}', b"null", None)
        logprobs = b"null"
        tokens = self._tokens.pop(choice, None)
        if tokens:
            logprobs = orjson.dumps({"content": logprobs_json(tokens), "refusal": None})
        return role + self._told(choice, delta, logprobs, ending)

    def _told(
        self, choice: int, delta: bytes, logprobs: bytes, ending: dict[str, Any] | None
    ) -> bytes:
        rest = b'"finish_reason":null}' if ending is None else orjson.dumps(ending)[1:]
        return b"".join(
            (
                self._head,
                b'{"index":%d,"delta":' % choice,
                delta,
                b',"logprobs":',
                logprobs,
                b",",
                rest,
                self._tail,
            )
        )
