"""The items of a response as chat messages: what a model says in one turn is one message."""

from __future__ import annotations

from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.conversation import (
    call_message,
    image_part,
    join_parts,
)
from hud.inference.dialects.fields import Fields
from hud.trace import ChatMessage

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_items(body: Fields) -> list[ChatMessage]:
    """Return the items of `input` as chat messages: what a model says in one turn is one message."""
    if isinstance(body.get("input"), str):
        return [{"role": "user", "content": body.get("input")}]
    messages: list[ChatMessage] = []
    for item in body.objects("input"):
        match item.text("type") or "message":
            case "message":
                _add_message(messages, item)
            case "function_call":
                call = call_message(
                    item.needed_text("call_id"),
                    item.needed_text("name"),
                    item.text("arguments") or "{}",
                )
                _assistant(messages).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": item.needed_text("call_id"),
                        "content": _content(item, "output"),
                    }
                )
            case "reasoning":
                thought = "".join(part.text("text") or "" for part in item.objects("content"))
                if thought:
                    messages.append(
                        {"role": "assistant", "content": None, "reasoning_content": thought}
                    )
            case other:
                raise UsageError(
                    f"{item.place('type')}: items of type {other!r} are not supported for this model."
                )
    return messages


def _add_message(messages: list[ChatMessage], item: Fields) -> None:
    role = _ROLES.get(item.needed_text("role"))
    if role is None:
        raise item.wrong("role", f"one of {', '.join(_ROLES)}")
    content = _content(item, "content")
    last = messages[-1] if messages else {}
    if role == "assistant" and last.get("role") == "assistant" and last["content"] is None:
        last["content"] = content  # What was thought before it.
        return
    messages.append({"role": role, "content": content})


def _assistant(messages: list[ChatMessage]) -> ChatMessage:
    """Return the assistant's message that calls belong to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(item: Fields, name: str) -> Any:
    content = item.get(name)
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in item.objects(name):
        match part.needed_text("type"):
            case "input_text" | "output_text" | "text" | "summary_text":
                parts.append({"type": "text", "text": part.text("text") or ""})
            case "refusal":
                parts.append({"type": "text", "text": part.text("refusal") or ""})
            case "input_image":
                parts.append(image_part(part.needed_text("image_url")))
            case other:
                raise UsageError(
                    f"{part.place('type')}: content of type {other!r} is not supported here."
                )
    return join_parts(parts)
