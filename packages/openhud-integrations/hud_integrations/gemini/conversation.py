"""Conversations as Gemini's contents, written and read: parts of text, images, function calls and responses.

Gemini's own turns are repeated unchanged, with their thought signatures. Requests may name their fields in
camel or in snake case.
"""

from __future__ import annotations

import re
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.inference.dialects.conversation_parts import (
    Answered,
    Part,
    add_seal,
    alternating_turns,
    image_part,
    inline_image,
    join_parts,
    own_turn,
    parts_of,
    split_opening,
)
from hud.inference.dialects.tool_calls import arguments_object, with_call_ids
from hud.trace import ChatMessage, call_message
from hud_integrations.gemini.fields import CamelFields
from hud_integrations.gemini.tools import Declared

DIALECT = "generate_content"
_UNSIGNED = "skip_thought_signature_validator"
"""Signature that Google documents for calls of other models."""
_URL = re.compile(r"\b(?:https?|about|chrome|file|data):\S+")
_NO_URL = "about:blank"


def write_system(messages: list[ChatMessage]) -> list[Part]:
    """Return the system messages that open the conversation."""
    opening, _ = split_opening(messages)
    return [part for message in opening for part in content_parts(message["content"])]


def write_contents(
    messages: list[ChatMessage], declared: Declared, *, images_inside: bool
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages, user and model in turn.

    With `images_inside`, images of results are parts of the function's response; otherwise they follow it.
    """

    def results(answered: Answered) -> list[Part]:
        responses: list[Part] = []
        after: list[Part] = []
        for call, answers in answered:
            response, images = _response(call, answers, declared)
            if images and images_inside:
                response["parts"] = images
            else:
                after.extend(images)
            responses.append({"functionResponse": response})
        return responses + after

    _, spoken = split_opening(with_call_ids(messages, DIALECT))
    return alternating_turns(
        spoken,
        ("user", "model"),
        "parts",
        content=content_parts,
        written=lambda message: _written(message, declared),
        results=results,
    )


def content_parts(content: Any) -> list[Part]:
    """Return message content as parts."""
    return [
        _image(part["image_url"]["url"]) if part["type"] == "image_url" else {"text": part["text"]}
        for part in parts_of(content)
        if part["type"] == "image_url" or part["text"]
    ]


def _response(
    call: Part, answers: list[ChatMessage], declared: Declared
) -> tuple[dict[str, Any], list[Part]]:
    """Return a function's response, and the images in it."""
    failed = [message for message in answers if message.get("is_error")]
    parts = content_parts((failed or answers)[-1]["content"])
    text = "\n".join(part["text"] for part in parts if "text" in part)
    result: dict[str, Any] = {"error" if failed else "output": text}
    if declared.is_action(call["name"]):
        # The API requires the browser's URL after each action.
        url = _URL.search(text)
        result["url"] = url[0] if url else _NO_URL
        if "safety_decision" in (call.get("args") or {}):
            result["safety_acknowledgement"] = "true"
    response = {"name": call["name"], "response": result}
    if call.get("id"):
        response["id"] = call["id"]
    return response, [part for part in parts if "text" not in part]


def _written(message: ChatMessage, declared: Declared) -> tuple[list[Part], dict[str, Part]]:
    """Return an assistant turn's parts, Gemini's own or newly written ones, and its calls by id."""
    verbatim = own_turn(message, DIALECT)
    if verbatim is not None:
        parts = verbatim["items"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return parts, dict(zip(verbatim["ids"], calls, strict=True))
    parts = content_parts(message.get("content"))
    by_id: dict[str, Part] = {}
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"]
        by_id[call["id"]] = {
            "id": call["id"],
            "name": declared.wire.get(name, name),
            "args": arguments_object(call["function"]["arguments"]),
        }
        parts.append({"functionCall": by_id[call["id"]], "thoughtSignature": _UNSIGNED})
    return parts, by_id


def _image(url: str) -> Part:
    inline = inline_image(url)
    if inline is None:
        return {"fileData": {"fileUri": url}}
    return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}


def read_contents(body: CamelFields) -> list[ChatMessage]:
    """Return the system instruction and the contents as chat messages."""
    messages: list[ChatMessage] = []
    system = body.get("systemInstruction")
    if isinstance(system, str):
        messages.append({"role": "system", "content": system})
    elif system is not None:
        parts = _parts(CamelFields(system, "systemInstruction"))
        text = "\n".join(part.text("text") or "" for part in parts)
        messages.append({"role": "system", "content": text})
    # Calls may have no ids: a response without one belongs to the earliest open call of its name.
    open_calls: list[tuple[str, str]] = []
    contents = body.get("contents")
    if isinstance(contents, str):
        return [*messages, {"role": "user", "content": contents}]
    for content in (
        body.objects("contents")
        if isinstance(contents, list)
        else [CamelFields(contents, "contents")]
        if contents
        else []
    ):
        role = content.text("role") or "user"
        if role == "model":
            messages.append(_read_model(content, open_calls))
        elif role in ("user", "function", "tool"):
            messages.extend(_read_user(content, open_calls))
        else:
            raise content.wrong("role", "'user' or 'model'")
    return messages


def _parts(content: CamelFields) -> list[CamelFields]:
    parts = content.get("parts")
    return (
        [content.inner("parts") or CamelFields({})]
        if isinstance(parts, dict)
        else content.objects("parts")
    )


def _read_model(content: CamelFields, open_calls: list[tuple[str, str]]) -> ChatMessage:
    read: ChatMessage = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for part in _parts(content):
        call = part.inner("functionCall")
        text = part.text("text")
        add_seal(read, part.text("thoughtSignature"))
        if call is not None:
            name = call.needed_text("name")
            identifier = call.text("id") or f"call_{len(open_calls) + len(calls)}_{name}"
            calls.append(
                call_message(identifier, name, exact_json.dumps(call.object("args") or {}).decode())
            )
            open_calls.append((name, identifier))
        elif text is not None and part.flag("thought"):
            read["reasoning_content"] = read.get("reasoning_content", "") + text
        elif text is not None:
            read["content"] = (read["content"] or "") + text
        elif part.get("thoughtSignature") is None:
            raise UsageError(f"{part.where}: only text and function calls are supported here.")
    if calls:
        read["tool_calls"] = calls
    return read


def _read_user(content: CamelFields, open_calls: list[tuple[str, str]]) -> list[ChatMessage]:
    results: list[ChatMessage] = []
    parts: list[dict[str, Any]] = []
    for part in _parts(content):
        response = part.inner("functionResponse")
        if response is None:
            parts.append(_read_part(part))
            continue
        name = response.needed_text("name")
        identifier = response.text("id") or next(
            (call for called, call in open_calls if called == name), name
        )
        open_calls[:] = [call for call in open_calls if call[1] != identifier]
        results.append(
            {
                "role": "tool",
                "tool_call_id": identifier,
                "content": _result_content(response),
            }
        )
    return [*results, {"role": "user", "content": join_parts(parts)}] if parts else results


def _result_content(response: CamelFields) -> Any:
    """Return a function's response as message content: its text, then its images."""
    text = _result_text(response.object("response") or {})
    images = [_read_part(part) for part in _parts(response)]
    return join_parts([{"type": "text", "text": text}, *images]) if images else text


def _result_text(value: dict[str, Any]) -> str:
    """Return a function's response as text; clients wrap plain text in an object with one field."""
    if len(value) == 1:
        (key, only) = next(iter(value.items()))
        if key in ("result", "output") and isinstance(only, str):
            return only
    return exact_json.dumps(value).decode()


def _read_part(part: CamelFields) -> dict[str, Any]:
    text = part.text("text")
    if text is not None:
        return {"type": "text", "text": text}
    data = part.inner("inlineData")
    if data is not None:
        kind = data.text("mimeType") or ""
        if kind.startswith("image/"):
            return image_part(f"data:{kind};base64,{data.needed_text('data')}")
    raise UsageError(f"{part.where}: only text and inline images are supported here.")
