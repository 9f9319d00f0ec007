"""A streamed answer of chat completions, put together to the answer that would have come whole."""

from __future__ import annotations

from typing import Any

import orjson

from hud.inference.retries import AnsweredError, BrokenAnswer

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def joined(body: bytes) -> dict[str, Any]:
    """Return the answer whose server-sent events `body` holds.

    Raises `BrokenAnswer` for a stream that ended early, and `AnsweredError` for one that says an error.
    """
    answer: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    choice: dict[str, Any] = {"message": message, "finish_reason": None}
    for event in _events(body):
        if event.get("error"):
            error = (
                event["error"] if isinstance(event["error"], dict) else {"message": event["error"]}
            )
            code = error.get("code") or error.get("type")
            raise AnsweredError(None if code is None else str(code), str(error.get("message")))
        for name in ("model", "usage"):
            if event.get(name):
                answer[name] = event[name]
        for part in event.get("choices") or []:
            delta = part.get("delta") or {}
            for name in _TEXTS:
                if delta.get(name) is not None:
                    message[name] = (message.get(name) or "") + delta[name]
            for position, call in enumerate(delta.get("tool_calls") or []):
                _add(calls, call.get("index", position), call)
            for name in ("finish_reason", "stop_reason"):
                if part.get(name):
                    choice[name] = part[name]
    if choice["finish_reason"] is None:
        raise BrokenAnswer("broke its stream off before the answer was complete")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**answer, "choices": [choice]}


def _add(calls: dict[int, dict[str, Any]], index: int, delta: dict[str, Any]) -> None:
    call = calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or delta.get("id")
    for name, text in (delta.get("function") or {}).items():
        if isinstance(text, str):
            call["function"][name] = call["function"].get(name, "") + text


def _events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; comments, and fields other than `data`, say nothing here."""
    found = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(
            line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
        )
        if not data or data.strip() == b"[DONE]":
            continue
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise BrokenAnswer("broke its stream off in the middle of an event") from None
        if isinstance(event, dict):
            found.append(event)
    return found
