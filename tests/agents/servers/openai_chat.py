"""Chat completions on loopback, as https://platform.openai.com/docs/api-reference/chat documents them.

A turn of the script is a dict: an assistant's message, beside which `finish_reason` and `usage` may stand.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from aiohttp import web
from tests.agents.servers.loopback import LoopbackProvider, demand, fields, image_url

KEY = "sk-loopback"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOP = {
    "max_tokens": int,
    "max_completion_tokens": int,
    "parallel_tool_calls": bool,
    "reasoning_effort": str,
    "seed": int,
    "stop": (str, list),
    "stream": bool,
    "stream_options": dict,
    "temperature": (int, float),
    "tool_choice": (str, dict),
    "tools": list,
    "top_p": (int, float),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def say(text: str | None, **more: Any) -> dict[str, Any]:
    return {"content": text, **more}


def call(*calls: tuple[str, str, Any], **more: Any) -> dict[str, Any]:
    """A turn of calls, each a name, an id and its arguments (as JSON where they are a dict)."""
    written = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for name, call_id, given in calls
    ]
    return {"content": None, "tool_calls": written, **more}


class OpenAIChat(LoopbackProvider):
    """`POST /v1/chat/completions`, and `GET /v1/models`."""

    def __init__(self, *script: Any, models: tuple[str, ...] = ("mine",)) -> None:
        super().__init__(*script)
        self.models = models
        self.numbers = itertools.count(1)

    def _split(self, turn: dict[str, Any]) -> tuple[dict[str, Any], str, dict[str, Any]]:
        message = {"role": "assistant", "refusal": None, "annotations": [], **turn}
        usual = "tool_calls" if message.get("tool_calls") else "stop"
        reason = message.pop("finish_reason", usual)
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 8},
        }
        return message, reason, message.pop("usage", usage)

    def _frame(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{next(self.numbers)}",
            "object": kind,
            "created": 1_790_000_000,
            "model": f"{body['model']}-2026-07-01",
            "service_tier": "default",
            "system_fingerprint": None,
        }

    def whole(self, turn: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        message, reason, usage = self._split(turn)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._frame(body, "chat.completion"), "choices": [choice], "usage": usage}

    def events(self, turn: dict[str, Any], body: dict[str, Any]) -> list[bytes]:
        message, reason, usage = self._split(turn)
        frame = {**self._frame(body, "chat.completion.chunk"), "usage": None}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
        for name in ("reasoning_content", "content", "refusal"):
            text = message.get(name) or ""
            deltas += [{name: piece} for piece in (text[:2], text[2:]) if piece]
        for index, one in enumerate(message.get("tool_calls") or []):
            function = one["function"]
            begun = {**one, "index": index, "function": {**function, "arguments": ""}}
            deltas.append({"tool_calls": [begun]})
            text = function["arguments"]
            for piece in (text[:3], text[3:]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        said = [
            {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in deltas
        ]
        said.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            said.append({**frame, "choices": [], "usage": usage})
        return [b": keep-alive\n\n", *map(_event, said), b"data: [DONE]\n\n"]

    def error_event(self, error: dict[str, Any]) -> bytes:
        return _event({"error": error})

    def listing(self, request: web.Request) -> web.Response:
        if request.path != "/v1/models":
            return super().listing(request)
        rows = [{"id": name, "object": "model"} for name in self.models]
        return web.json_response({"object": "list", "data": rows})

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        demand(request.path == "/v1/chat/completions", f"Invalid URL (POST {request.path})")
        demand(request.headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key")
        fields(body, "body", {"model": str, "messages": list}, _TOP)
        demand("stream_options" not in body or body.get("stream"), "stream_options needs stream")
        demand(body["messages"], "messages is empty")
        demand(body.get("tools") != [], "tools is empty")
        for number, tool in enumerate(body.get("tools", [])):
            where = f"tools[{number}].function"
            fields(tool, f"tools[{number}]", {"type": ("function",), "function": dict}, {})
            known = {"description": str, "parameters": dict, "strict": bool}
            fields(tool["function"], where, {"name": str}, known)
            demand(_NAME.fullmatch(tool["function"]["name"]), f"{where}.name does not match")
        self._check_messages(body["messages"])

    def _check_messages(self, messages: list[Any]) -> None:
        waiting: list[str] = []
        for number, message in enumerate(messages):
            where = f"messages[{number}]"
            role = message.get("role")
            demand(role in _ROLES, f"{where}.role {role!r} is none")
            if role == "tool":
                required = {"role": str, "tool_call_id": str, "content": (str, list)}
                fields(message, where, required, {})
                demand(message["tool_call_id"] in waiting, f"{where} answers no tool call")
                waiting.remove(message["tool_call_id"])
                _check_parts(message["content"], where, {"text"})
                continue
            demand(not waiting, f"The tool_call_ids {waiting} did not have response messages")
            if role == "assistant":
                optional = {"content": (str, list, type(None)), "tool_calls": list}
                fields(message, where, {"role": str}, {**optional, "reasoning_content": str})
                calls = message.get("tool_calls", [])
                demand(calls or message.get("content"), f"{where} says nothing")
                for one in calls:
                    fields(one, where, {"id": str, "type": ("function",), "function": dict}, {})
                    demand(_NAME.fullmatch(one["function"]["name"]), f"{where}: name of a call")
                    fields(one["function"], where, {"name": str, "arguments": str}, {})
                    waiting.append(one["id"])
                demand(len(set(waiting)) == len(waiting), f"{where} has two calls of one id")
                continue
            fields(message, where, {"role": str, "content": (str, list)}, {"name": str})
            _check_parts(message["content"], where, {"text", "image_url"} & _parts_of(role))
        demand(not waiting, f"The tool_call_ids {waiting} did not have response messages")


def _parts_of(role: str) -> set[str]:
    return {"text", "image_url"} if role == "user" else {"text"}


def _check_parts(content: Any, where: str, allowed: set[str]) -> None:
    if isinstance(content, str):
        return
    demand(content, f"{where}.content is empty")
    for part in content:
        kind = part.get("type")
        demand(kind in allowed, f"{where} holds a part {kind!r}; allowed are {sorted(allowed)}")
        if kind == "image_url":
            fields(part, where, {"type": str, "image_url": dict}, {})
            image_url(part["image_url"]["url"], where)
        else:
            fields(part, where, {"type": str, "text": str}, {})


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
