"""Chat messages as the input items of a Responses request.

A turn that the provider wrote goes back word for word, so that its encrypted reasoning stays valid; what other
dialects or a prompt wrote is written anew. Nothing is stored at the provider: each request holds everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.inference.dialects.responses.computer import BLANK
from hud.trace import ChatMessage

DIALECT = "responses"


def instructions_of(messages: list[ChatMessage]) -> str | None:
    """Return the system messages that open the conversation, as one text."""
    texts = []
    for message in messages:
        if message["role"] != "system":
            break
        texts.append(_text(message["content"]))
    return "\n\n".join(texts) or None


def input_items(
    messages: list[ChatMessage], wire: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages; `wire` has names of tools as they are sent."""
    items: list[dict[str, Any]] = []
    screens = _Screens(items)
    opening = True
    for message in messages:
        role = message["role"]
        opening = opening and role == "system"
        if opening:
            continue
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
        self.known: list[str] = []

    def expect(self, written: list[dict[str, Any]]) -> None:
        """Remember the computer calls of a turn."""
        self.calls = {item["call_id"]: item for item in written if item["type"] == "computer_call"}

    def take(self, message: ChatMessage) -> bool:
        """Take a tool's answer if it is one of a computer; of a batch of actions the last screen counts."""
        call_id = message["tool_call_id"].partition("#")[0]
        if call_id not in self.calls:
            return False
        content = message["content"]
        pictures = [] if isinstance(content, str) else _pictures(content)
        if pictures:
            self.shown[call_id] = pictures[-1]
        text = _text(content)
        if message.get("is_error"):
            self.refused.append(text)
        else:
            self.words += [line for line in text.splitlines() if line not in self.words]
        return True

    def flush(self) -> None:
        """Write what the calls came to."""
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
        # A screenshot has no place for words: what it does not show, such as an address, is told when it changes.
        if self.refused:
            self._tell("The computer refused an action: " + "\n".join(self.refused))
        news = [line for line in self.words if line not in self.known]
        if news:
            self._tell("Beside the screen: " + "\n".join(news))
        if self.calls:
            self.known = self.words or self.known
        self.calls, self.shown, self.refused, self.words = {}, {}, [], []

    def _tell(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        self.items.append({"type": "message", "role": "user", "content": [part]})


def _written(message: ChatMessage, wire: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return an assistant turn's items: the provider's own, or the same said anew."""
    verbatim = message.get("verbatim")
    if verbatim is not None and verbatim["dialect"] == DIALECT:
        own: list[dict[str, Any]] = verbatim["items"]
        return own
    items: list[dict[str, Any]] = []
    if message.get("content"):
        items.append({"type": "message", "role": "assistant", "content": _text(message["content"])})
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
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in content or []
    ]


def _pictures(content: list[dict[str, Any]]) -> list[str]:
    return [part["image_url"]["url"] for part in content or [] if part["type"] == "image_url"]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [] if part["type"] == "text")
