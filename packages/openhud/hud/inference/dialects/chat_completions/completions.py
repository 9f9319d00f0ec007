"""`CompletionsCodec`: OpenAI's older completions, which continue a text without a chat format, as a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.inference.dialects.chat_completions.answer import write_error, write_usage
from hud.inference.dialects.chat_completions.codec import (
    MOST_CHOICES,
    UNSUPPORTED_SAMPLING,
    includes_usage,
    read_sampling,
)
from hud.inference.dialects.codec import EVENTS, Refusal
from hud.inference.dialects.events import (
    Event,
    Finished,
    TextDelta,
    TokenInfo,
    TokensDrawn,
    Turn,
    usage_of,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.trace import new_id

_UNSUPPORTED = (*UNSUPPORTED_SAMPLING, "suffix", "echo")
_MOST_LOGPROBS = 5
DEFAULT_TOKENS = 16
"""Default `max_tokens`."""


class CompletionsCodec:
    """Codec of `POST /completions`."""

    error = staticmethod(write_error)

    def read(self, body: Fields) -> GenerationRequest:
        """Return a body's request. Raises `UsageError` for an invalid or unsupported field, and too many completions."""
        body.refuse(_UNSUPPORTED, " for this model")
        prompts = _prompts(body)
        count = body.integer("n", least=1, most=MOST_CHOICES) or 1
        if (body.integer("best_of", least=1) or count) != count:
            raise UsageError("best_of is not supported for this model. Leave it out.")
        if count * len(prompts) > MOST_CHOICES:
            raise UsageError(f"This asks for more than {MOST_CHOICES} completions at once.")
        sampling = read_sampling(body)
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=DEFAULT_TOKENS)
        return GenerationRequest(
            model=body.needed_text("model"),
            prompts=[prompt for prompt in prompts for _ in range(count)],
            choices=count * len(prompts),
            sampling=sampling,
            top_logprobs=body.integer("logprobs", least=0, most=_MOST_LOGPROBS),
            return_token_ids=bool(body.flag("return_token_ids")),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
        )

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        return {
            **_head(model),
            "choices": [
                {
                    "index": place,
                    "text": turn.text,
                    "logprobs": _logprobs(turn.tokens)
                    if request.top_logprobs is not None
                    else None,
                    **_ending(turn.finished),
                }
                for place, turn in enumerate(turns)
            ],
            "usage": write_usage(usage_of(turn.finished for turn in turns)),
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> CompletionsWriter:
        return CompletionsWriter(model, includes_usage(body))


class CompletionsWriter:
    """Writer of a completion's chunks."""

    content_type = EVENTS
    answer = None

    def __init__(self, model: str, include_usage: bool) -> None:
        self._head = _head(model)
        self._include_usage = include_usage
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._ends: list[Finished] = []

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(choice, text):
                return self._chunk(choice, text, {"finish_reason": None})
            case TokensDrawn(choice, tokens):
                self._tokens.setdefault(choice, []).extend(tokens)
            case Finished():
                self._ends.append(event)
                return self._chunk(event.choice, "", _ending(event))
        return b""

    def end(self) -> bytes:
        last = b""
        if self._include_usage:
            last = _event({**self._head, "choices": [], "usage": write_usage(usage_of(self._ends))})
        return last + b"data: [DONE]\n\n"

    def fail(self, refusal: Refusal) -> bytes:
        return _event(write_error(refusal))

    def _chunk(self, choice: int, text: str, ending: dict[str, Any]) -> bytes:
        tokens = self._tokens.pop(choice, None)
        logprobs = _logprobs(tokens) if tokens else None
        piece = {"index": choice, "text": text, "logprobs": logprobs, **ending}
        return _event({**self._head, "choices": [piece]})


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + exact_json.dumps(value) + b"\n\n"


def _head(model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{new_id()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _prompts(body: Fields) -> list[str | list[int]]:
    value = body.get("prompt")
    prompts = value if isinstance(value, list) and not _is_ids(value) else [value]
    if not prompts or not all(
        (isinstance(prompt, str) and prompt) or _is_ids(prompt) for prompt in prompts
    ):
        raise body.wrong("prompt", "text, a list of token ids, or a list of either")
    return prompts


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and item >= 0 for item in value)
    )


def _logprobs(tokens: list[TokenInfo]) -> dict[str, Any]:
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.text: other.logprob for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _ending(finished: Finished) -> dict[str, Any]:
    ending: dict[str, Any] = {"finish_reason": finished.reason}
    if finished.sample is not None:
        ending["prompt_token_ids"] = finished.sample.prompt_token_ids
        ending["token_ids"] = finished.sample.output_token_ids
    return ending
