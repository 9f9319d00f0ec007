"""`ChatCodec`: OpenAI's chat completions, with extensions for training, as a server and as a client.

`return_token_ids` puts `prompt_token_ids` and `token_ids` into each choice, streamed or not; `prompt_token_ids` with
`continuation_from` continues exact ids, in which `continuation_from` messages, system messages not counted, are
already written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.answer import (
    read_answer,
    write_choice,
    write_error,
    write_usage,
)
from hud.inference.dialects.chat_completions.conversation import documented_messages, read_message
from hud.inference.dialects.chat_completions.sampled_pictures import with_files
from hud.inference.dialects.chat_completions.stream import DONE, ChatReader, joined_answer
from hud.inference.dialects.chat_completions.stream_writer import ChatWriter
from hud.inference.dialects.chat_completions.tools import (
    LONGEST_NAME,
    read_format,
    read_tool_choice,
    read_tools,
    write_format,
    write_tools,
)
from hud.inference.dialects.codec import StreamedRequest
from hud.inference.dialects.conversation_parts import read_effort, read_stops, refuse_tokens
from hud.inference.dialects.events import Turn, usage_of
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.inference.endpoints import bearer, path_below
from hud.inference.tool_names import wire_names
from hud.trace import Completion, Continuation, SamplingParams, new_id, wire_messages

UNSUPPORTED_SAMPLING = (
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "min_tokens",
    "typical_p",
    "top_a",
    "bad_words",
    "stop_token_ids",
    "ignore_eos",
    "use_beam_search",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "prompt_logprobs",
    "allowed_token_ids",
)
"""Settings of vLLM and others that would change the output; ignored, they would mislead. 0, false and empty ones have no effect."""
MOST_CHOICES = 128
MOST_TOP_LOGPROBS = 20
_LARGEST_ID = 1 << 31
_UNSUPPORTED = (
    *UNSUPPORTED_SAMPLING,
    "prediction",
    "prefix",
    "reasoning",
    "thinking",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "continue_final_message",
    "echo",
    "functions",
    "function_call",
    "audio",
    "web_search_options",
)


@dataclass(frozen=True)
class ChatCodec:
    """Codec of chat completions. The fields are settings of requests to a server."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to the body unchanged. With `return_token_ids` the server is OpenHUD's, and conversations are sent in
    `hud.trace` form; for others they follow the dialect's documentation."""
    limit: str = "max_tokens"
    """Field of the token limit: OpenAI's newer models reject `max_tokens`, other servers accept only that."""

    error = staticmethod(write_error)
    url = staticmethod(path_below)
    credentials = staticmethod(bearer)

    @property
    def with_tokens(self) -> bool:
        """True where sampled ids are requested, and exact prefixes sent."""
        return bool(self.extra.get("return_token_ids"))

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for invalid or unsupported fields, and without messages."""
        body.refuse(_UNSUPPORTED, " for this model")
        body.require("modalities", ["text"])
        body.require("verbosity", "medium")
        body.require("add_generation_prompt", True)
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
            system_prompt=body.text("system_prompt"),
            stream=bool(body.flag("stream")),
        )

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [write_choice(place, turn, request) for place, turn in enumerate(turns)],
            "usage": write_usage(usage_of(turn.finished for turn in turns)),
            "system_fingerprint": None,
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ChatWriter:
        return ChatWriter(model, include_usage=includes_usage(body))

    def request(self, model: str, request: GenerationRequest) -> StreamedRequest:
        if self.with_tokens:
            # OpenHUD's server renders the original names, as in training.
            names: dict[str, str] = {}
            messages = wire_messages(request.messages)
        else:
            refuse_tokens(model, request)
            names = wire_names([tool.name for tool in request.tools], LONGEST_NAME)
            messages = documented_messages(request.messages, names, model)
        sampling = request.sampling
        wishes = {
            self.limit: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "reasoning_effort": sampling.reasoning_effort,
            "stop": list(sampling.stop) or None,
            "n": request.choices if request.choices > 1 else None,
            "response_format": write_format(request.format),
            "logprobs": True if request.top_logprobs is not None or self.with_tokens else None,
            "top_logprobs": request.top_logprobs,
            "stream": request.stream or None,
            "stream_options": {"include_usage": True} if request.stream else None,
        }
        body: dict[str, Any] = {"model": model, "messages": messages, **write_tools(request, names)}
        # Only set parameters: a server's defaults and refusals apply to the rest.
        body |= {name: value for name, value in wishes.items() if value is not None}
        body |= self.extra
        if self.with_tokens and request.continuation is not None:
            body["prompt_token_ids"] = request.continuation.token_ids
            body["continuation_from"] = request.continuation.covered
        named = {wire: name for name, wire in names.items()}

        def completion(answer: dict[str, Any]) -> Completion:
            continued = request.continuation if self.with_tokens else None
            read = read_answer(answer, model, continued, sampling.temperature)
            for call in read.tool_calls:
                call.name = named.get(call.name, call.name)
            if read.sample is not None and read.sample.pictures:
                read.sample.pictures = with_files(read.sample.pictures, request.messages)
            return read

        return StreamedRequest(
            "chat/completions",
            body,
            streams=request.stream,
            joined=lambda events: joined_answer(events, named),
            completion=completion,
            reader=lambda: ChatReader(request.choices, named),
            lacks="has no choices",
            done=DONE,
        )


def read_sampling(body: Fields) -> SamplingParams:
    """Return the sampling parameters of chat completions and completions; `top_k` is an extension of many servers."""
    body.require("repetition_penalty", 1)
    body.require("length_penalty", 1)
    return SamplingParams(
        max_tokens=body.integer("max_completion_tokens", "max_tokens", least=1),
        temperature=body.number("temperature", least=0, most=2),
        top_p=body.number("top_p", least=1e-6, most=1),
        top_k=body.integer("top_k", least=0),
        stop=read_stops(body, "stop"),
        seed=body.integer("seed", least=0, most=(1 << 63) - 1),
        reasoning_effort=read_effort(body, "reasoning_effort"),
    )


def includes_usage(body: Fields) -> bool:
    """Return True if a stream shall end with the token counts."""
    options = body.inner("stream_options")
    return bool(options is not None and options.flag("include_usage"))


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
