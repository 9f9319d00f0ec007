"""Pieces of the common conversation, `hud.trace.ChatMessage`, and of requests, that every dialect reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, ToolChoice
from hud.trace import ChatMessage, ReasoningEffort, ToolSpec

MOST_STOPS = 16
_EFFORTS: dict[str, ReasoningEffort] = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_LOW_TOKENS, _MEDIUM_TOKENS = 4096, 16384
"""Budgets of thinking up to which an effort counts as low and as medium."""
SEALS = "thought_seals"
"""Key of an assistant message with opaque texts of its thoughts, in a request as codecs read it; the server removes it."""
Part = dict[str, Any]
Answered = list[tuple[Part, list[ChatMessage]]]
"""Calls of one turn in order, each with the tool messages that answer it."""


def image_part(url: str) -> Part:
    """Return an image as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def join_parts(parts: list[Part], separator: str = "\n") -> Any:
    """Return text parts as one text; with an image among them, the parts unchanged."""
    if all(part["type"] == "text" for part in parts):
        return separator.join(part["text"] for part in parts)
    return parts


def parts_of(content: Any) -> list[Part]:
    """Return message content as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def text_in(content: Any) -> str:
    """Return the text of message content, parts joined by newlines."""
    return "\n".join(part["text"] for part in parts_of(content) if part["type"] == "text")


def images_in(content: Any) -> list[str]:
    """Return the URLs of the images in message content."""
    return [part["image_url"]["url"] for part in parts_of(content) if part["type"] == "image_url"]


def inline_image(url: str) -> tuple[str, str] | None:
    """Return media type and base64 of a `data:` URL, None for any other URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[len("data:") : -len(";base64")] or "image/png", data


def split_opening(messages: list[ChatMessage]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """Return the system messages that open a conversation, and the rest."""
    for index, message in enumerate(messages):
        if message["role"] != "system":
            return messages[:index], messages[index:]
    return messages, []


def add_seal(message: ChatMessage, seal: str | None) -> None:
    """Add the opaque text of a thought to the assistant's message."""
    if seal:
        message.setdefault(SEALS, []).append(seal)


def own_turn(message: ChatMessage, dialect: str) -> dict[str, Any] | None:
    """Return the `verbatim` of an assistant turn that was written in `dialect`."""
    verbatim: dict[str, Any] | None = message.get("verbatim")
    return verbatim if verbatim is not None and verbatim["dialect"] == dialect else None


def alternating_turns(
    messages: list[ChatMessage],
    roles: tuple[str, str],
    key: str,
    *,
    content: Callable[[Any], list[Part]],
    written: Callable[[ChatMessage], tuple[list[Part], dict[str, Part]]],
    results: Callable[[Answered], list[Part]],
) -> list[dict[str, Any]]:
    """Return a conversation as turns with alternating roles, for APIs that require it; empty turns are omitted.

    `roles` names the user's and the model's role, `key` the field that holds a turn's parts. `written` returns an
    assistant turn's parts and its calls by id; `results` the parts that answer the calls. Raises `UsageError` for a tool
    message without a call in the turn before it.
    """
    turns: list[dict[str, Any]] = []
    calls: dict[str, Part] = {}
    answers: dict[str, list[ChatMessage]] = {}

    def add(role: str, parts: list[Part]) -> None:
        if parts and turns and turns[-1]["role"] == role:
            turns[-1][key] = [*turns[-1][key], *parts]
        elif parts:
            turns.append({"role": role, key: parts})

    def answered() -> list[Part]:
        return results([(calls[call], answers[call]) for call in calls if call in answers])

    for message in messages:
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            # One of a call's repetitions, or the call itself.
            made_id = call_id if call_id in calls else call_id.rpartition(".")[0]
            if made_id not in calls:
                raise UsageError(
                    f"No call of the turn before has the id {call_id!r} of a tool message."
                )
            answers.setdefault(made_id, []).append(message)
            continue
        add(roles[0], answered())
        calls, answers = {}, {}
        if message["role"] == "assistant":
            parts, calls = written(message)
            add(roles[1], parts)
        else:
            add(roles[0], content(message["content"]))
    add(roles[0], answered())
    return turns


def tool_spec(function: Fields, schema: dict[str, Any] | None) -> ToolSpec:
    """Return a tool; without a schema it takes no arguments. The schema stays unchanged: prompts contain it."""
    name, description = function.needed_text("name"), function.text("description") or ""
    if schema is None:
        return ToolSpec(name=name, description=description)
    return ToolSpec(name=name, description=description, parameters=schema)


def checked_choice(choice: ToolChoice, tools: list[ToolSpec]) -> ToolChoice:
    """Return a tool choice. Raises `UsageError` if it requires a tool that is missing in the request."""
    names = {tool.name for tool in tools}
    missing = [name for name in choice.names if name not in names]
    if missing or not names:
        what = f"the tool {missing[0]!r}" if missing else "a tool call"
        raise UsageError(f"tool_choice requires {what}, but the request gives no such tool.")
    return choice


def read_stops(body: Fields, *names: str) -> tuple[str, ...]:
    """Return the stop strings. Raises `UsageError` for more than 16."""
    stops = tuple(stop for stop in body.texts(*names) if stop)
    if len(stops) > MOST_STOPS:
        raise UsageError(f"{body.place(names[0])} holds more than {MOST_STOPS} stop strings.")
    return stops


def read_effort(fields: Fields, *names: str) -> ReasoningEffort | None:
    """Return the effort in a field; provider-specific values are mapped to the nearest `ReasoningEffort`."""
    word = fields.text(*names)
    if word is None or word.lower().endswith("unspecified"):
        return None
    effort = _EFFORTS.get(word.lower())
    if effort is None:
        raise fields.wrong(names[0], f"one of {', '.join(_EFFORTS)}")
    return effort


def effort_of_budget(tokens: int | None) -> ReasoningEffort | None:
    """Return the effort of a thinking budget; a negative one leaves it to the model."""
    if tokens is None or tokens < 0:
        return None
    if tokens == 0:
        return "none"
    if tokens <= _LOW_TOKENS:
        return "low"
    return "medium" if tokens <= _MEDIUM_TOKENS else "high"


def refuse_tokens(model: str, request: GenerationRequest) -> None:
    """Raise `UsageError` for parameters of local models only."""
    for used, name in (
        (request.return_token_ids, "return_token_ids"),
        (request.continuation, "prompt_token_ids"),
        (request.prompts is not None, "prompt"),
    ):
        if used:
            raise UsageError(
                f"{name} is not supported for {model!r}: its provider shows no tokens."
            )


def refuse_alternatives(model: str, request: GenerationRequest) -> None:
    """Raise `UsageError` for logprobs and for several choices."""
    if request.top_logprobs is not None:
        raise UsageError(f"logprobs are not supported for {model!r}: its provider gives none.")
    if request.choices > 1:
        raise UsageError(f"Only one choice can be asked of {model!r} at a time.")
