"""`AnthropicCodec`: `POST /v1/messages`, as a server and as a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.codec import StreamedRequest
from hud.inference.dialects.conversation_parts import (
    effort_of_budget,
    read_effort,
    read_stops,
    refuse_alternatives,
    refuse_tokens,
)
from hud.inference.dialects.events import Turn
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, OutputFormat
from hud.trace import Completion, ReasoningEffort, SamplingParams
from hud_integrations.anthropic.answer import (
    PAUSED,
    check_message,
    read_turn,
    write_error,
    write_message,
)
from hud_integrations.anthropic.conversation import (
    container_of,
    mark_cache,
    read_conversation,
    write_conversation,
    write_system,
)
from hud_integrations.anthropic.stream import MessageReader, MessageWriter, joined_message
from hud_integrations.anthropic.tools import (
    binds_thinking,
    declare,
    read_choice,
    read_tools,
    write_choice,
)

_UNSUPPORTED = ("mcp_servers", "container")
_CLEARS_THOUGHTS = "clear_thinking_20251015"
DEFAULT_TOKENS = 4096
"""Default `max_tokens`: the dialect requires a limit, and all its models support this one."""
LONGEST_WHOLE = 21_333
"""`max_tokens` above which the response is streamed: it may take over ten minutes, longer than proxies keep an idle
connection."""
MOST_PAUSES = 16
"""Maximum pauses of a turn for the provider's own tools."""
VERSION = {"anthropic-version": "2023-06-01"}
"""Header that every request needs."""
_BINDING_BETA = "thinking-binding-controls-2026-08-01"


@dataclass(frozen=True)
class AnthropicCodec:
    """Codec of Anthropic's Messages API. The fields are settings of requests to the provider."""

    thinking: dict[str, Any] | None = None
    effort: str | None = None
    hosted_tools: Sequence[dict[str, Any]] = ()
    """Declarations of tools that the provider executes."""
    betas: Sequence[str] = ()
    citations: bool = False
    """Send results of functions as documents that Claude can cite."""
    resumed: bool = False
    """Later requests extend the conversation: prompts get cache marks, and thoughts that no longer match the prompt are
    dropped instead of rejected."""

    error = staticmethod(write_error)

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for invalid or unsupported fields, and without messages."""
        body.refuse(_UNSUPPORTED, " for this model")
        body.require("speed", "standard")
        _check_edits(body.inner("context_management") or Fields({}))
        tools = read_tools(body)
        choice = body.inner("tool_choice")
        thinking = body.inner("thinking")
        config = body.inner("output_config") or Fields({})
        messages = read_conversation(body)
        if not any(message["role"] != "system" for message in messages):
            raise UsageError("messages must hold at least one message.")
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=body.integer("max_tokens", least=1),
                temperature=body.number("temperature", least=0, most=1),
                top_p=body.number("top_p", least=1e-6, most=1),
                top_k=body.integer("top_k", least=0),
                stop=read_stops(body, "stop_sequences"),
                reasoning_effort=read_effort(config, "effort"),
            ),
            tool_choice=read_choice(choice, tools),
            parallel_calls=choice is None or choice.flag("disable_parallel_tool_use") is not True,
            format=_read_format(body.inner("output_format") or config.inner("format")),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
            think=None if thinking is None else thinking.text("type") != "disabled",
            budgeted_effort=None if thinking is None else _read_thinking(thinking),
        )

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        (turn,) = turns
        return write_message(model, request.response_id, turn, think=request.think is not False)

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> MessageWriter:
        return MessageWriter(model, request.response_id, think=request.think is not False)

    def url(self, base: str, model: str, action: str) -> str:
        del model
        return f"{base}/v1/{action}"

    def credentials(self, key: str | None) -> dict[str, str]:
        return {"x-api-key": key} if key else {}

    def request(self, model: str, request: GenerationRequest) -> StreamedRequest:
        """Return a streamed request. Raises `UsageError` for a setting that the dialect lacks."""
        refuse_tokens(model, request)
        refuse_alternatives(model, request)
        sampling = request.sampling
        if sampling.seed is not None:
            raise UsageError(f"seed is not supported for {model!r}. Leave it out.")
        if request.format is not None and request.format.schema is None:
            raise UsageError(
                f"{model!r} writes JSON by a schema only: give response_format a json_schema."
            )
        most = sampling.max_tokens or DEFAULT_TOKENS
        declared = declare(request.tools, model, self.hosted_tools)
        system = write_system(request.messages)
        turns = write_conversation(request.messages, declared, citations=self.citations)
        if self.resumed:
            mark_cache(system, turns)
        betas = [*self.betas, *declared.betas]
        output: dict[str, Any] = {} if self.effort is None else {"effort": self.effort}
        if request.format is not None:
            output["format"] = {"type": "json_schema", "schema": request.format.schema}
        # Other dialects have temperatures up to 2.
        temperature = None if sampling.temperature is None else min(sampling.temperature, 1.0)
        wishes = {
            "system": system,
            "temperature": temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or None,
            "stop_sequences": list(sampling.stop),
            "tools": declared.tools,
            "tool_choice": write_choice(request, declared) if request.tools else None,
            "container": container_of(request.messages),
            "output_config": output,
            "thinking": self._thinking(model, most, betas),
            "stream": request.stream or most > LONGEST_WHOLE or None,
        }
        body: dict[str, Any] = {"model": model, "max_tokens": most, "messages": turns}
        body |= {name: value for name, value in wishes.items() if value not in (None, [], {})}
        headers = dict(VERSION)
        if betas:
            headers["anthropic-beta"] = ",".join(betas)
        answers: list[dict[str, Any]] = []

        def completion(answer: dict[str, Any]) -> Completion | None:
            check_message(answer)
            answers.append(answer)
            if answer["stop_reason"] != PAUSED or len(answers) > MOST_PAUSES:
                return read_turn(answers, model, declared)
            so_far = [block for answer in answers for block in answer["content"]]
            body["messages"] = [*turns, {"role": "assistant", "content": so_far}]
            if answer.get("container"):
                body["container"] = answer["container"]["id"]
            return None

        return StreamedRequest(
            "messages",
            body,
            streams="stream" in body,
            joined=joined_message,
            completion=completion,
            reader=lambda: MessageReader(declared.named),
            lacks="is no message",
            headers=headers,
        )

    def _thinking(self, model: str, most: int, betas: list[str]) -> dict[str, Any] | None:
        """Return the `thinking` parameter, and add its beta header; a budget above `max_tokens` is omitted."""
        thinking = self.thinking
        if thinking is not None and thinking.get("budget_tokens", 0) >= most:
            thinking = None
        if not self.resumed or not binds_thinking(model) or "block_binding" in (thinking or {}):
            return thinking
        # Adaptive thinking is these models' default.
        thinking = thinking or {"type": "adaptive"}
        if thinking.get("type") not in ("adaptive", "enabled"):
            return thinking
        betas.append(_BINDING_BETA)
        return {**thinking, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def _check_edits(management: Fields) -> None:
    """Raise `UsageError` for an edit of the conversation; clients ask by default for one that keeps every thought."""
    for edit in management.objects("edits"):
        if edit.text("type") != _CLEARS_THOUGHTS or edit.get("keep") != "all":
            raise edit.unsupported("context edits", "are not supported for this model")


def _read_thinking(thinking: Fields) -> ReasoningEffort | None:
    if thinking.text("type") == "disabled":
        return "none"
    return effort_of_budget(thinking.integer("budget_tokens", least=1))


def _read_format(format_fields: Fields | None) -> OutputFormat | None:
    if format_fields is None:
        return None
    if format_fields.text("type") != "json_schema":
        raise format_fields.wrong("type", "'json_schema'")
    return OutputFormat(format_fields.object("schema"))
