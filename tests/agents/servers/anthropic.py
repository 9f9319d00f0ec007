"""Anthropic's messages on loopback, as https://platform.claude.com/docs/en/api/messages documents them.

A turn of the script is a list of content blocks, or a dict `{"content": [...], "stop_reason": ..., "stop_details":
..., "usage": ..., "container": ...}`. Thoughts are signed: they must come back as they went, and where the model binds
them, what was before them must be what it was.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from aiohttp import web
from tests.agents.servers.loopback import LoopbackProvider, demand, fields, image_url

KEY = "sk-ant-loopback"
BINDING = "thinking-binding-controls-2026-08-01"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOP = {
    "container": str,
    "output_config": dict,
    "stream": bool,
    "system": (str, list),
    "thinking": dict,
    "tools": list,
}
_COMPUTERS = {
    "computer_20251124": "computer-use-2025-11-24",
    "computer_20250124": "computer-use-2025-01-24",
}
_NEWEST_ONLY = ("-5-5", "fable-5-2", "mythos-5-2")
_BINDING_MODELS = ("-5-5", "-5-1", "-5-2")
_SERVER_RESULTS = ("web_search_tool_result", "code_execution_tool_result")


def say(text: str, *citations: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": list(citations) or None}


def think(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    return {**block, "caller": {"type": "direct"}}


def act(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    """A call of one of the computer's members."""
    return {**call(name, call_id, **arguments), "toolset_name": "computer"}


class AnthropicMessages(LoopbackProvider):
    """`POST /v1/messages`."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.numbers = itertools.count(1)
        self.signed: dict[str, tuple[dict[str, Any], str]] = {}
        """The thoughts that were answered by signature, and the conversation that was before them."""

    def whole(self, turn: Any, body: dict[str, Any]) -> dict[str, Any]:
        turn = {"content": turn} if isinstance(turn, list) else dict(turn)
        content = turn.pop("content")
        spoken = body["messages"]
        before = len(spoken) - 1 if spoken[-1]["role"] == "assistant" else len(spoken)
        for block in content:
            if block["type"] == "thinking":
                self.signed[block["signature"]] = (block, _prefix(body, before))
        calls = any(block["type"] == "tool_use" for block in content)
        usage = {
            "input_tokens": 60,
            "cache_creation_input_tokens": 10,
            "cache_read_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 20,
            "service_tier": "standard",
        }
        return {
            "id": f"msg_{next(self.numbers)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
            **turn,
        }

    def events(self, turn: Any, body: dict[str, Any]) -> list[bytes]:
        message = self.whole(turn, body)
        begun = {**message, "content": [], "stop_reason": None, "stop_details": None}
        begun |= {"container": None, "usage": {**message["usage"], "output_tokens": 1}}
        said: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(message["content"]):
            said.extend({**event, "index": index} for event in _spoken(block))
        ending = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        if message["container"]:
            ending["container"] = message["container"]
        usage = {"output_tokens": message["usage"]["output_tokens"]}
        said.append({"type": "message_delta", "delta": ending, "usage": usage})
        said.append({"type": "message_stop"})
        return [_event(one) for one in said]

    def error_event(self, error: dict[str, Any]) -> bytes:
        return _event({"type": "error", "error": error, "request_id": "req_1"})

    def refusal(self, problem: str) -> dict[str, Any]:
        error = {"type": "invalid_request_error", "message": problem}
        return {"type": "error", "error": error, "request_id": "req_1"}

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        demand(request.path == "/v1/messages", f"Not found: {request.path}")
        keys = (request.headers.get("x-api-key"), request.headers.get("authorization"))
        demand(KEY in keys or f"Bearer {KEY}" in keys, "invalid x-api-key")
        demand(request.headers.get("anthropic-version"), "anthropic-version: header is required")
        betas = request.headers.get("anthropic-beta", "").split(",")
        fields(body, "body", {"model": str, "max_tokens": int, "messages": list}, _TOP)
        demand(body["max_tokens"] >= 1, "max_tokens: must be at least 1")
        _check_thinking(body, betas)
        for block in body.get("system", []):
            _check_block(block, "system", ("text",))
        tools = _check_tools(body, betas)
        self._check_messages(body, tools)
        marks = json.dumps(body).count('"cache_control"')
        demand(
            marks <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
        )

    def _check_messages(self, body: dict[str, Any], tools: set[str]) -> None:
        messages = body["messages"]
        demand(messages and messages[0]["role"] == "user", "messages: first message must be user")
        waiting: dict[str, dict[str, Any]] = {}
        used: set[str] = set()
        for number, message in enumerate(messages):
            where = f"messages.{number}"
            fields(message, where, {"role": ("user", "assistant"), "content": list}, {})
            demand(message["content"], f"{where}: all messages must have non-empty content")
            if number:
                demand(
                    message["role"] != messages[number - 1]["role"],
                    f"{where}: roles must alternate",
                )
            if message["role"] == "user":
                _check_user(message["content"], where, waiting)
                waiting = {}
                continue
            demand(not waiting, f"{where}: tool_use without tool_result")
            self._check_thoughts(body, number)
            for index, block in enumerate(message["content"]):
                at = f"{where}.content.{index}"
                _check_block(block, at, ("text", "thinking", "tool_use", "server"))
                if block["type"] == "tool_use":
                    demand(block["id"] not in used, f"{at}: `tool_use` ids must be unique")
                    demand(block["name"] in tools or "toolset_name" in block, f"{at}: no such tool")
                    used.add(block["id"])
                    waiting[block["id"]] = block
        demand(not waiting, f"`tool_use` ids {sorted(waiting)} were found without `tool_result`")

    def _check_thoughts(self, body: dict[str, Any], number: int) -> None:
        binding = body.get("thinking", {}).get("block_binding", {})
        drops = binding.get("prefix_mismatch_behavior") == "drop_block"
        for index, block in enumerate(body["messages"][number]["content"]):
            if block["type"] != "thinking":
                continue
            at = f"messages.{number}.content.{index}: Invalid `signature` in `thinking` block"
            demand(block.get("signature") in self.signed, at)
            given, before = self.signed[block["signature"]]
            demand(block == given, f"{at}: `thinking` blocks cannot be modified")
            if any(part in body["model"] for part in _BINDING_MODELS) and not drops:
                demand(
                    before == _prefix(body, number),
                    f"{at}. The block is bound to another conversation",
                )


def _prefix(body: dict[str, Any], number: int) -> str:
    """Return what is before a message, without marks of the cache."""
    before = [body.get("system"), body.get("tools"), body["messages"][:number]]

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items() if name != "cache_control"}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return json.dumps(plain(before), sort_keys=True)


def _check_thinking(body: dict[str, Any], betas: list[str]) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kinds = ("adaptive", "enabled", "disabled", "between_tools")
    more = {"budget_tokens": int, "display": ("summarized", "omitted"), "block_binding": dict}
    fields(thinking, "thinking", {"type": kinds}, more)
    if thinking["type"] == "enabled":
        budget = thinking.get("budget_tokens", 0)
        demand(budget >= 1024, "thinking.enabled.budget_tokens: must be at least 1024")
        demand(budget < body["max_tokens"], "`max_tokens` must be greater than `budget_tokens`")
    if "block_binding" in thinking:
        demand(BINDING in betas, "thinking.block_binding: needs its beta header")
        demand(thinking["type"] in ("adaptive", "enabled"), "thinking.block_binding: not permitted")


def _check_tools(body: dict[str, Any], betas: list[str]) -> set[str]:
    names: list[str] = []
    for number, tool in enumerate(body.get("tools", [])):
        where = f"tools.{number}"
        kind = tool.get("type", "custom")
        mark = {"cache_control": dict}
        if kind == "custom":
            needed = {"name": str, "input_schema": dict}
            fields(tool, where, needed, {"description": str, "type": str, **mark})
            demand(_NAME.fullmatch(tool["name"]), f"{where}.name: {tool['name']!r} does not match")
            demand(tool["input_schema"].get("type") == "object", f"{where}: not an object schema")
        elif kind == "bash_20250124":
            fields(tool, where, {"type": str, "name": ("bash",)}, mark)
        elif kind == "text_editor_20250728":
            fields(tool, where, {"type": str, "name": ("str_replace_based_edit_tool",)}, mark)
        elif kind == "computer_toolset_20260801":
            fields(tool, where, {"type": str}, {"configs": dict, **mark})
            demand("-5" in body["model"] or "-4-8" in body["model"], f"{where}: not supported")
        elif kind in _COMPUTERS:
            sizes = {"display_width_px": int, "display_height_px": int}
            needed = {"type": str, "name": ("computer",), **sizes}
            fields(tool, where, needed, {"enable_zoom": bool, **mark})
            demand(_COMPUTERS[kind] in betas, f"{where}: Input tag {kind!r} needs its beta header")
            old = all(part not in body["model"] for part in _NEWEST_ONLY)
            demand(old, f"{where}: {body['model']} does not support {kind}")
        else:
            demand(
                kind.startswith(("web_search_", "code_execution_")), f"{where}: unknown {kind!r}"
            )
            demand(tool.get("name") in ("web_search", "code_execution"), f"{where}.name")
        if "name" in tool:
            names.append(tool["name"])
    demand(len(names) == len(set(names)), "tools: Tool names must be unique.")
    return set(names)


def _check_user(content: list[Any], where: str, waiting: dict[str, dict[str, Any]]) -> None:
    open_calls = dict(waiting)
    begun = False
    for index, block in enumerate(content):
        at = f"{where}.content.{index}"
        _check_block(block, at, ("text", "image", "document", "tool_result"))
        if block["type"] != "tool_result":
            begun = True
            continue
        demand(not begun, f"{at}: tool_result blocks must come first")
        use = open_calls.pop(block["tool_use_id"], None)
        demand(use, f"{at}: unexpected `tool_use_id` found in `tool_result` blocks")
        demand(block.get("toolset_name") == use.get("toolset_name"), f"{at}.toolset_name: mismatch")
    demand(
        not open_calls, f"`tool_use` ids without `tool_result` right after: {sorted(open_calls)}"
    )


def _check_block(block: Any, where: str, allowed: tuple[str, ...]) -> None:
    demand(isinstance(block, dict) and "type" in block, f"{where}: not a block: {block!r}")
    kind, mark = block["type"], {"type": str, "cache_control": dict}
    if mark_given := block.get("cache_control"):
        demand(mark_given == {"type": "ephemeral"}, f"{where}.cache_control")
    if kind == "server_tool_use" or kind in _SERVER_RESULTS:
        demand("server" in allowed, f"{where}: {kind} not permitted")
        return
    demand(kind in allowed, f"{where}: {kind} not permitted")
    if kind == "text":
        fields(block, where, {"text": str}, {**mark, "citations": (list, type(None))})
        demand(block["text"], f"{where}: text content blocks must be non-empty")
    elif kind == "thinking":
        fields(block, where, {"thinking": str, "signature": str}, {"type": str})
    elif kind == "tool_use":
        more = {**mark, "caller": dict, "toolset_name": str}
        fields(block, where, {"id": str, "name": str, "input": dict}, more)
        demand(_ID.fullmatch(block["id"]), f"{where}.id: does not match")
    elif kind == "image":
        fields(block, where, {"source": dict}, mark)
        fields(block["source"], where, {"type": ("base64",), "media_type": str, "data": str}, {})
        source = block["source"]
        image_url(f"data:{source['media_type']};base64,{source['data']}", where)
    elif kind == "document":
        fields(block, where, {"source": dict}, {**mark, "title": str, "citations": dict})
        needed = {"type": ("text",), "media_type": ("text/plain",), "data": str}
        fields(block["source"], where, needed, {})
    else:
        _check_result(block, where)


def _check_result(block: dict[str, Any], where: str) -> None:
    more = {"type": str, "cache_control": dict, "content": (str, list), "is_error": bool}
    fields(block, where, {"tool_use_id": str}, {**more, "toolset_name": str})
    content = block.get("content", [])
    for index, part in enumerate(content if isinstance(content, list) else []):
        _check_block(part, f"{where}.content.{index}", ("text", "image", "document"))
        if block.get("is_error"):
            demand(part["type"] == "text", f"{where}: all content must be text if is_error is true")
    demand(content or not block.get("is_error"), f"{where}: content cannot be empty if is_error")


def _spoken(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events by which one block is written."""
    empty = dict(block)
    deltas: list[dict[str, Any]] = []
    if block["type"] == "text":
        empty |= {"text": "", "citations": None}
        middle = len(block["text"]) // 2
        parts = (block["text"][:middle], block["text"][middle:])
        notes = block["citations"] or []
        deltas = [{"type": "text_delta", "text": part} for part in parts]
        deltas += [{"type": "citations_delta", "citation": note} for note in notes]
    elif block["type"] == "thinking":
        empty |= {"thinking": "", "signature": ""}
        deltas.append({"type": "thinking_delta", "thinking": block["thinking"]})
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] in ("tool_use", "server_tool_use"):
        empty["input"] = {}
        text = json.dumps(block["input"]) if block["input"] else ""
        middle = len(text) // 2
        parts = ("", text[:middle], text[middle:])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return [
        {"type": "content_block_start", "content_block": empty},
        *({"type": "content_block_delta", "delta": delta} for delta in deltas),
        {"type": "content_block_stop"},
    ]


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
