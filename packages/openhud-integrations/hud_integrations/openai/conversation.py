"""Conversations as the items of responses, written and read.

The provider's own turns are repeated unchanged, so that their encrypted reasoning stays valid; other turns are newly
written. Nothing is stored at the provider: each request contains the whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud import exact_json
from hud.inference.dialects.conversation_parts import (
    add_seal,
    image_part,
    images_in,
    join_parts,
    own_turn,
    parts_of,
    split_opening,
    text_in,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.tool_calls import with_call_ids
from hud.trace import ChatMessage, call_message
from hud_integrations.openai.computer import BLANK
from hud_integrations.openai.tools import SHELL, function_name, shell_arguments

DIALECT = "responses"
LONGEST_ID = 64
"""Most characters of a call's id."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def instructions_of(messages: list[ChatMessage]) -> str | None:
    """Return the system messages that open the conversation, as one text."""
    opening, _ = split_opening(messages)
    return "\n\n".join(text_in(message["content"]) for message in opening) or None


def input_items(
    messages: list[ChatMessage], wire: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages; `wire` maps tool names to those of the request."""
    items: list[dict[str, Any]] = []
    screens = _Screens(items)
    _, spoken = split_opening(with_call_ids(messages, DIALECT, LONGEST_ID))
    for message in spoken:
        role = message["role"]
        if role == "tool":
            if not screens.take(message):
                items.append(_function_output(message))
            continue
        screens.flush()
        if role == "assistant":
            written = _written(message, wire or {})
            items.extend(written)
            screens.expect(written)
        else:
            items.append(
                {
                    "type": "message",
                    "role": "developer" if role == "system" else "user",
                    "content": _content(message["content"]),
                }
            )
    screens.flush()
    return items


class _Screens:
    """The computer calls of the last turn, whose results become one screenshot for each call."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items
        self.calls: dict[str, dict[str, Any]] = {}
        self.shown: dict[str, str] = {}
        self.refused: list[str] = []
        self.words: list[str] = []
        self.shown_words: list[str] = []

    def expect(self, written: list[dict[str, Any]]) -> None:
        """Store the computer calls of a turn."""
        self.calls = {item["call_id"]: item for item in written if item["type"] == "computer_call"}

    def take(self, message: ChatMessage) -> bool:
        """Process a tool message that answers a computer call; of a batch of actions the last screenshot counts."""
        call_id = message["tool_call_id"].partition("#")[0]
        if call_id not in self.calls:
            return False
        content = message["content"]
        pictures = images_in(content)
        if pictures:
            self.shown[call_id] = pictures[-1]
        text = text_in(content)
        if message.get("is_error"):
            self.refused.append(text)
        else:
            self.words += [line for line in text.splitlines() if line not in self.words]
        return True

    def flush(self) -> None:
        """Write the results of the calls."""
        for call_id, call in self.calls.items():
            output: dict[str, Any] = {
                "type": "computer_call_output",
                "call_id": call_id,
                "output": {
                    "type": "computer_screenshot",
                    "image_url": self.shown.get(call_id, BLANK),
                },
            }
            checks = call.get("pending_safety_checks")
            if checks:
                output["acknowledged_safety_checks"] = checks
            self.items.append(output)
        # A screenshot has no text part: further information, such as the URL, follows when it changes.
        if self.refused:
            self._tell("The computer refused an action: " + "\n".join(self.refused))
        news = [line for line in self.words if line not in self.shown_words]
        if news:
            self._tell("Beside the screen: " + "\n".join(news))
        if self.calls:
            self.shown_words = self.words or self.shown_words
        self.calls, self.shown, self.refused, self.words = {}, {}, [], []

    def _tell(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        self.items.append({"type": "message", "role": "user", "content": [part]})


def _written(message: ChatMessage, wire: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return an assistant turn's items: the provider's own, or newly written ones."""
    verbatim = own_turn(message, DIALECT)
    if verbatim is not None:
        own: list[dict[str, Any]] = verbatim["items"]
        return own
    items: list[dict[str, Any]] = []
    if message.get("content"):
        items.append(
            {"type": "message", "role": "assistant", "content": text_in(message["content"])}
        )
    for call in message.get("tool_calls") or []:
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": wire.get(function["name"], function["name"]),
                "arguments": function["arguments"],
            }
        )
    return items


def _function_output(message: ChatMessage) -> dict[str, Any]:
    content = message["content"]
    output = content if isinstance(content, str) else _content(content)
    return {
        "type": "function_call_output",
        "call_id": message["tool_call_id"],
        "output": output,
    }


def _content(content: Any) -> list[dict[str, Any]]:
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in parts_of(content)
    ]


def read_items(body: Fields) -> list[ChatMessage]:
    """Return the items of `input` as chat messages; the items of one assistant turn are one message."""
    if isinstance(body.get("input"), str):
        return [{"role": "user", "content": body.get("input")}]
    messages: list[ChatMessage] = []
    for item in body.objects("input"):
        match item.text("type") or "message":
            case "message":
                _add_message(messages, item)
            case "function_call":
                name = function_name(item.needed_text("name"), item.text("namespace"))
                _add_call(messages, item, name, item.text("arguments") or "{}")
            case "custom_tool_call":
                arguments = {"input": item.text("input") or ""}
                _add_call(messages, item, item.needed_text("name"), _json(arguments))
            case "local_shell_call":
                _add_call(messages, item, SHELL, _json(shell_arguments(item.object("action"))))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": item.needed_text("call_id", "id"),
                        "content": _read_content(item, "output"),
                    }
                )
            case "reasoning":
                thought = "".join(part.text("text") or "" for part in item.objects("content"))
                seal = item.text("encrypted_content")
                if thought or seal:
                    turn = {"role": "assistant", "content": None, "reasoning_content": thought}
                    add_seal(turn, seal)
                    messages.append(turn)
            case _:
                raise item.unsupported("items", "are not supported for this model")
    return messages


def _add_message(messages: list[ChatMessage], item: Fields) -> None:
    role = _ROLES.get(item.needed_text("role"))
    if role is None:
        raise item.wrong("role", f"one of {', '.join(_ROLES)}")
    content = _read_content(item, "content")
    last = messages[-1] if messages else {}
    if role == "assistant" and last.get("role") == "assistant" and last["content"] is None:
        last["content"] = content  # It contains the reasoning before this text.
        return
    messages.append({"role": role, "content": content})


def _add_call(messages: list[ChatMessage], item: Fields, name: str, arguments: str) -> None:
    call = call_message(item.needed_text("call_id"), name, arguments)
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _json(value: Any) -> str:
    return exact_json.dumps(value).decode()


def _assistant(messages: list[ChatMessage]) -> ChatMessage:
    """Return the assistant's message of the calls."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _read_content(item: Fields, name: str) -> Any:
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
            case _:
                raise part.unsupported("content")
    return join_parts(parts)
