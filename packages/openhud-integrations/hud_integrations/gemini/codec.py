"""`GeminiCodec`: Gemini's generateContent, as a server and as a client.

Requests may name their fields in camel or in snake case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hud.errors import UsageError
from hud.inference.dialects.codec import SafetyPolicy, StreamedRequest
from hud.inference.dialects.conversation_parts import (
    effort_of_budget,
    read_effort,
    read_stops,
    refuse_alternatives,
    refuse_tokens,
)
from hud.inference.dialects.events import Turn, usage_of
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, OutputFormat
from hud.trace import SamplingParams
from hud_integrations.gemini.answer import (
    read_answer,
    write_error,
    write_turn,
    write_usage,
)
from hud_integrations.gemini.conversation import (
    read_contents,
    write_contents,
    write_system,
)
from hud_integrations.gemini.fields import CamelFields
from hud_integrations.gemini.stream import ContentReader, ContentWriter, joined_content
from hud_integrations.gemini.tools import (
    declare,
    json_schema,
    read_choice,
    read_tools,
    takes_images_inside,
    write_choice,
)

_UNSUPPORTED = ("cachedContent",)
_UNSUPPORTED_CONFIG = (
    "presencePenalty",
    "frequencyPenalty",
    "speechConfig",
    "imageConfig",
    "audioTimestamp",
    "routingConfig",
)
MOST_CANDIDATES = 8
ENUM = "text/x.enum"
"""Type of a response that is one of several plain texts."""


@dataclass(frozen=True)
class GeminiCodec:
    """Codec of Gemini's generateContent. The fields are settings of requests to the provider."""

    thinking: Mapping[str, Any] = field(default_factory=dict)
    """`thinkingConfig`."""
    hosted_tools: Sequence[dict[str, Any]] = ()
    """Declarations of tools that the provider executes."""
    computer: bool = False
    """Declare a computer as Gemini's native tool."""
    safety: SafetyPolicy = "acknowledge"

    error = staticmethod(write_error)

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for an invalid or unsupported field, and for empty contents."""
        body = CamelFields(body.values)
        body.refuse(_UNSUPPORTED, " for this model")
        config = body.inner("generationConfig") or CamelFields({})
        config.refuse(_UNSUPPORTED_CONFIG, " for this model")
        config.require("responseModalities", [], ["TEXT"], ["text"])
        tools = read_tools(body)
        messages = read_contents(body)
        if not any(message["role"] != "system" for message in messages):
            raise UsageError("contents must hold at least one content.")
        thinking = config.inner("thinkingConfig") or CamelFields({})
        logprobs = config.flag("responseLogprobs")
        most = config.integer("logprobs", least=0, most=20)
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=config.integer("maxOutputTokens", least=1),
                temperature=config.number("temperature", least=0, most=2),
                top_p=config.number("topP", least=1e-6, most=1),
                top_k=config.integer("topK", least=0),
                stop=read_stops(config, "stopSequences"),
                seed=config.integer("seed", least=0, most=(1 << 63) - 1),
                reasoning_effort=read_effort(thinking, "thinkingLevel"),
            ),
            choices=config.integer("candidateCount", least=1, most=MOST_CANDIDATES) or 1,
            tool_choice=read_choice(body, tools),
            format=_read_format(config),
            top_logprobs=(most or 0) if logprobs else None,
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
            think=bool(thinking.flag("includeThoughts")),
            budgeted_effort=effort_of_budget(thinking.integer("thinkingBudget", least=-1)),
        )

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        logprobs = request.top_logprobs is not None
        candidates = [
            write_turn(place, turn, think=request.think, logprobs=logprobs)
            for place, turn in enumerate(turns)
        ]
        return {
            "candidates": candidates,
            "usageMetadata": write_usage(usage_of(turn.finished for turn in turns)),
            "modelVersion": model,
            "responseId": request.response_id,
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ContentWriter:
        return ContentWriter(
            model,
            request.response_id,
            think=bool(request.think),
            events=bool(body.flag("server_sent_events")),
        )

    def url(self, base: str, model: str, action: str) -> str:
        return f"{base}/v1beta/models/{quote(model, safe='/')}:{action}"

    def credentials(self, key: str | None) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def request(self, model: str, request: GenerationRequest) -> StreamedRequest:
        refuse_tokens(model, request)
        refuse_alternatives(model, request)
        sampling = request.sampling
        declared = declare(request.tools, model, self.hosted_tools, computer=self.computer)
        config: dict[str, Any] = {
            "maxOutputTokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "topK": sampling.top_k or None,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "thinkingConfig": self.thinking or None,
        }
        if request.format is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = request.format.schema
        system = write_system(request.messages)
        wishes = {
            "generationConfig": {
                name: value for name, value in config.items() if value is not None
            },
            "systemInstruction": {"parts": system} if system else None,
            "tools": declared.tools,
            "toolConfig": write_choice(request, declared),
        }
        body: dict[str, Any] = {
            "contents": write_contents(
                request.messages, declared, images_inside=takes_images_inside(model)
            )
        }
        body |= {name: value for name, value in wishes.items() if value}
        return StreamedRequest(
            "streamGenerateContent?alt=sse" if request.stream else "generateContent",
            body,
            streams=request.stream,
            joined=joined_content,
            completion=lambda answer: read_answer(answer, model, declared, self.safety),
            reader=lambda: ContentReader(declared.named),
            lacks="is no answer",
        )


def _read_format(config: Fields) -> OutputFormat | None:
    kind = config.text("responseMimeType")
    if kind == ENUM:
        described = config.inner("responseSchema", "responseJsonSchema")
        words = () if described is None else described.texts("enum")
        if not words:
            raise UsageError(
                f"{config.place('responseSchema')}.enum must list the texts for {ENUM}."
            )
        return OutputFormat(name=ENUM, words=words)
    schema = config.object("responseJsonSchema")
    if schema is not None:
        return OutputFormat(schema)
    schema = config.object("responseSchema")
    if schema is not None:
        return OutputFormat(json_schema(schema))
    if kind in (None, "text/plain"):
        return None
    if kind == "application/json":
        return OutputFormat()
    raise config.wrong("responseMimeType", f"'text/plain', 'application/json' or '{ENUM}'")
