"""`ResponsesCodec`: OpenAI's responses, as a server and as a client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.answer import write_error
from hud.inference.dialects.chat_completions.codec import MOST_TOP_LOGPROBS
from hud.inference.dialects.chat_completions.tools import read_format, read_tool_choice
from hud.inference.dialects.codec import SafetyPolicy, WireRequest
from hud.inference.dialects.conversation_parts import read_effort
from hud.inference.dialects.events import Turn
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.inference.endpoints import bearer, path_below
from hud.trace import SamplingParams
from hud_integrations.openai.answer import (
    end_response,
    read_response,
    write_output,
)
from hud_integrations.openai.computer import ComputerTool
from hud_integrations.openai.conversation import (
    input_items,
    instructions_of,
    read_items,
)
from hud_integrations.openai.stream import ResponseWriter, joined_response
from hud_integrations.openai.tools import client_tools, declare, read_tools

_UNSUPPORTED = ("background", "conversation", "prompt", "max_tool_calls", "context_management")
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-")
_LEAST_OUTPUT = 16
"""The provider's minimum token limit."""


@dataclass(frozen=True)
class ResponsesCodec:
    """Codec of the Responses API. The fields are settings of requests to the provider."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to the body unchanged."""
    computer: ComputerTool | None = None
    """The native tool as which a computer is declared; None: a function."""
    hosted_tools: Sequence[dict[str, Any]] = ()
    """Declarations of tools that the provider executes."""
    safety: SafetyPolicy = "acknowledge"

    error = staticmethod(write_error)
    url = staticmethod(path_below)
    credentials = staticmethod(bearer)

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for an invalid or unsupported field, and for empty input."""
        body.refuse(_UNSUPPORTED, " for this model")
        body.require("truncation", "disabled")
        tools = read_tools(body)
        text = body.inner("text") or Fields({})
        text.require("verbosity", "medium")
        reasoning = body.inner("reasoning") or Fields({})
        messages = read_items(body)
        if not messages:
            raise UsageError("input must hold at least one item.")
        instructions = body.text("instructions")
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=body.integer("max_output_tokens", least=1),
                temperature=body.number("temperature", least=0, most=2),
                top_p=body.number("top_p", least=1e-6, most=1),
                reasoning_effort=read_effort(reasoning, "effort"),
            ),
            tool_choice=read_tool_choice(body, tools),
            parallel_calls=body.flag("parallel_tool_calls") is not False,
            format=read_format(text.inner("format")),
            top_logprobs=_top_logprobs(body),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
        )

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        (turn,) = turns
        output = write_output(turn, client_tools(body), summary=_asks_summary(body))
        return end_response(_begin(body, request, model), output, turn.finished)

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ResponseWriter:
        return ResponseWriter(
            _begin(body, request, model), client_tools(body), summary=_asks_summary(body)
        )

    def request(self, model: str, request: GenerationRequest) -> WireRequest:
        declared = declare(request.tools, self.computer, self.hosted_tools)
        sampling, most = request.sampling, request.sampling.max_tokens
        wishes = {
            "instructions": instructions_of(request.messages),
            "tools": declared.tools or None,
            "include": None
            if model.startswith(_WITHOUT_REASONING)
            else ["reasoning.encrypted_content"],
            "max_output_tokens": None if most is None else max(_LEAST_OUTPUT, most),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": request.stream or None,
        }
        body: dict[str, Any] = {
            "model": model,
            "input": input_items(request.messages, declared.wire),
            # The provider stores nothing.
            "store": False,
            **self.settings,
        }
        body |= {name: value for name, value in wishes.items() if value is not None}
        return WireRequest(
            "responses",
            body,
            streams=request.stream,
            joined=joined_response,
            completion=lambda answer: read_response(answer, model, declared, safety=self.safety),
            lacks="is no response",
        )


def _asks_summary(body: Fields) -> bool:
    return (body.inner("reasoning") or Fields({})).get("summary") is not None


def _top_logprobs(body: Fields) -> int | None:
    most = body.integer("top_logprobs", least=0, most=MOST_TOP_LOGPROBS)
    if "message.output_text.logprobs" in body.texts("include"):
        return most or 0
    return most or None


def _begin(body: Fields, request: GenerationRequest, model: str) -> dict[str, Any]:
    """Return a response without output; it repeats the fields of its request."""
    sampling = request.sampling
    return {
        "id": f"resp_{request.response_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.text("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_calls,
        "previous_response_id": body.text("previous_response_id"),
        "reasoning": {"effort": sampling.reasoning_effort, "summary": None},
        "store": body.flag("store") is not False,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.get("metadata") or {},
    }
