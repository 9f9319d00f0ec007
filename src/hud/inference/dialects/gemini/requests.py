"""A conversation as Gemini's contents: parts of text, pictures, function calls and responses.

A turn that Gemini wrote goes back part by part as it came, with its thought signatures. Nothing here asks anybody.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from hud.inference.dialects.gemini.tools import Declared
from hud.trace import ChatMessage

Part = dict[str, Any]

DIALECT = "generate_content"
_UNSIGNED = "skip_thought_signature_validator"
"""What Google documents for calls that another model made."""
_URL = re.compile(r"\b(?:https?|about|chrome|file|data):\S+")
_NO_URL = "about:blank"


def system_instruction(messages: list[ChatMessage]) -> dict[str, Any] | None:
    """Return the system messages that open the conversation."""
    parts = [
        part
        for message in messages[: _opening(messages)]
        for part in content_parts(message["content"])
    ]
    return {"parts": parts} if parts else None


def contents(
    messages: list[ChatMessage], declared: Declared, *, sees_results: bool
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages, user and model in turn."""
    turns: list[dict[str, Any]] = []
    results = _Results([], declared, sees_results)
    for message in messages[_opening(messages) :]:
        role = message["role"]
        if role == "tool":
            results.take(message)
            continue
        _add(turns, "user", results.parts())
        results = _Results([], declared, sees_results)
        if role == "assistant":
            parts, calls = _written(message, declared)
            _add(turns, "model", parts)
            results = _Results(calls, declared, sees_results)
        else:
            _add(turns, "user", content_parts(message["content"]))
    _add(turns, "user", results.parts())
    return turns


def content_parts(content: Any) -> list[Part]:
    """Return message content as parts."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [
        _picture(part["image_url"]["url"])
        if part["type"] == "image_url"
        else {"text": part["text"]}
        for part in content or []
        if part["type"] == "image_url" or part["text"]
    ]


class _Results:
    """What the function calls of one turn came to, one response for each call, in their order."""

    def __init__(self, calls: list[tuple[str, Part]], declared: Declared, inside: bool) -> None:
        self.calls = calls
        self.declared = declared
        self.inside = inside
        self.answers: dict[str, list[ChatMessage]] = {}

    def take(self, message: ChatMessage) -> None:
        """Take an answer: of a call, or of one of the actions that a call stands for."""
        call_id = message["tool_call_id"]
        if all(call_id != known for known, _ in self.calls):
            call_id = call_id.rpartition(".")[0]
        self.answers.setdefault(call_id, []).append(message)

    def parts(self) -> list[Part]:
        """Return the responses, and after them pictures that cannot be part of one."""
        responses: list[Part] = []
        beside: list[Part] = []
        for call_id, call in self.calls:
            if call_id not in self.answers:
                continue
            response, pictures = self._response(call, self.answers[call_id])
            if pictures and self.inside:
                response["parts"] = pictures
            else:
                beside.extend(pictures)
            responses.append({"function_response": response})
        return responses + beside

    def _response(
        self, call: Part, answers: list[ChatMessage]
    ) -> tuple[dict[str, Any], list[Part]]:
        failed = [message for message in answers if message.get("is_error")]
        parts = content_parts((failed or answers)[-1]["content"])
        text = "\n".join(part["text"] for part in parts if "text" in part)
        said: dict[str, Any] = {"error" if failed else "output": text}
        if self.declared.is_action(call["name"]):
            # The model is told after each action where the browser is.
            url = _URL.search(text)
            said["url"] = url[0] if url else _NO_URL
            if "safety_decision" in (call.get("args") or {}):
                said["safety_acknowledgement"] = "true"
        response = {"name": call["name"], "response": said}
        if call.get("id"):
            response["id"] = call["id"]
        return response, [part for part in parts if "inline_data" in part]


def _opening(messages: list[ChatMessage]) -> int:
    """Return how many system messages open the conversation."""
    for index, message in enumerate(messages):
        if message["role"] != "system":
            return index
    return len(messages)


def _add(turns: list[dict[str, Any]], role: str, parts: list[Part]) -> None:
    """Append parts; the API wants the roles in turn, and no content without parts."""
    if not parts:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["parts"] = [*turns[-1]["parts"], *parts]
    else:
        turns.append({"role": role, "parts": parts})


def _written(message: ChatMessage, declared: Declared) -> tuple[list[Part], list[tuple[str, Part]]]:
    """Return an assistant turn's parts, Gemini's own or the same said anew, and its calls by our ids."""
    verbatim = message.get("verbatim")
    if verbatim is not None and verbatim["dialect"] == DIALECT:
        parts = verbatim["items"]
        calls = [part["function_call"] for part in parts if "function_call" in part]
        return parts, list(zip(verbatim["ids"], calls, strict=True))
    parts = content_parts(message.get("content"))
    ids = []
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"]
        arguments = _object(call["function"]["arguments"])
        made = {"id": call["id"], "name": declared.wire.get(name, name), "args": arguments}
        parts.append({"function_call": made, "thought_signature": _UNSIGNED})
        ids.append((call["id"], made))
    return parts, ids


def _object(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def _picture(url: str) -> Part:
    if not url.startswith("data:"):
        return {"file_data": {"file_uri": url}}
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"inline_data": {"mime_type": kind, "data": data}}
